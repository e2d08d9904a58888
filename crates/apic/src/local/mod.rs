//! The local APIC.

use core::convert::Infallible;

use crate::pages::{BASE_BSP, BASE_ENABLE, BASE_X2, SVR_SUPPRESS, error};
use crate::summary::Summary;
use crate::{Delivery, Message, Mode, Pages, Received, Vectors, lvt, offset};
use paravirtual_eoi::ParavirtualEoi;
use timer::Timer;

mod paravirtual_eoi;
mod registers;
pub use paravirtual_eoi::EoiBit;
pub use registers::reads_from_page;
mod saved;
mod timer;

/// An access that raises #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// External effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None, or a change that [`LocalApic::pending`] reflects.
    None,
    /// A message must be sent.
    Send(Message),
    /// A level-triggered interrupt ended: broadcast to the I/O APICs.
    End(u8),
    /// [`LocalApic::timer_deadline`] may have changed.
    Timer,
    /// No effect: the write concerns the timer, which is passed through. The caller must call
    /// [`HostTimer::reclaim`](crate::HostTimer::reclaim), and then [`LocalApic::write`] again.
    Reclaim {
        /// The register.
        offset: u32,
        /// The value.
        value: u32,
    },
}

/// The owner's view of a virtual processor's local APIC: owned by the processor that runs it, while the guest
/// is not running. `B`: the kind of bits by which guests end interrupts, if they can.
#[derive(Debug)]
pub struct LocalApic<'a, B = Infallible> {
    pages: &'a Pages,
    /// Bound of other APICs' identifiers for [`send_to_one`](Self::send_to_one): `u32::MAX`, or 0 if there are gaps between them.
    id_limit: u32,
    timer: Timer,
    /// Nonzero words of IRR and ISR. Stale after a guest has run with virtual-interrupt delivery: see
    /// [`refresh`](Self::refresh).
    requests: Summary,
    services: Summary,
    /// The guest's bit. While it is lent, an interrupt in service is in neither ISR nor `services`.
    eoi: ParavirtualEoi<B>,
    /// Virtual-interrupt delivery is on: IRR and ISR change while the guest runs.
    assisted: bool,
    /// IRR or ISR differs from the last [`take_status`](Self::take_status).
    changed: bool,
    /// Vectors whose EOI must exit: those that were level-triggered.
    exits: Vectors,
    /// `exits` differs from the last [`take_status`](Self::take_status).
    exits_changed: bool,
}

/// VMCS fields of virtual-interrupt delivery, to be written before entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// RVI in the low byte, SVI in the high one ("Guest Interrupt Status").
    pub interrupts: u16,
    /// The EOI-exit bitmap ("EOI-Exit Bitmap"), if it changed. Bits are only added, until INIT: a superfluous
    /// exit is harmless.
    pub exits: Option<Vectors>,
}

impl<'a> LocalApic<'a> {
    /// A local APIC whose registers are in `pages`, which must have been reset.
    pub const fn new(pages: &'a Pages) -> Self {
        Self::with_bits(pages)
    }
}

impl<'a, B: EoiBit> LocalApic<'a, B> {
    /// A local APIC whose registers are in `pages`, which must have been reset, of guests that may have bits of this kind.
    pub const fn with_bits(pages: &'a Pages) -> Self {
        let (requests, services) = (Summary::EMPTY, Summary::EMPTY);
        let (exits, eoi) = (Vectors::NONE, ParavirtualEoi::NONE);
        let (timer, id_limit) = (Timer::STOPPED, u32::MAX);
        Self { pages, id_limit, timer, requests, services, eoi, assisted: false, changed: true, exits, exits_changed: true }
    }

    /// Sets the minimum timer period, in the unit of [`expire_timer`](Self::expire_timer)'s `now`: shorter
    /// periods are extended to it once they have expired.
    #[must_use]
    pub const fn with_least_period(mut self, ticks: u64) -> Self {
        self.timer.least = ticks;
        self
    }

    /// With gaps between identifiers, excludes messages to other APICs from [`send_to_one`](Self::send_to_one), whose callers
    /// use an identifier as an index.
    #[must_use]
    pub const fn with_gaps(mut self, has_gaps: bool) -> Self {
        self.id_limit = if has_gaps { 0 } else { u32::MAX };
        self
    }

    /// INIT: resets everything but the ID and IA32_APIC_BASE. The guest has no bit afterwards.
    pub fn init(&mut self) {
        self.take_back_eoi();
        self.pages.init();
        *self =
            Self { assisted: self.assisted, id_limit: self.id_limit, ..Self::with_bits(self.pages).with_least_period(self.timer.least) };
    }

    /// Sets the bit by which the guest may end interrupts, or none. Only without virtual-interrupt delivery. The bit is accessed until
    /// the next call, or [`init`](Self::init).
    pub fn set_eoi_bit(&mut self, bit: Option<B>) {
        self.take_back_eoi();
        self.eoi.set_bit(bit);
    }

    /// Takes the guest's bit back: ISR is right from here on, until an interrupt is put into service.
    #[inline(always)]
    fn take_back_eoi(&mut self) {
        if let Some(vector) = self.eoi.take_back() {
            self.services.insert(self.pages, offset::ISR, vector);
        }
    }

    /// Puts an interrupt into service after [`take_back_eoi`](Self::take_back_eoi): in ISR, or by the guest's bit.
    #[inline(always)]
    fn serve(&mut self, vector: u8, is_edge: impl FnOnce() -> bool) {
        if !self.requests.is_empty() || !self.eoi.lend(vector, is_edge) {
            self.services.insert(self.pages, offset::ISR, vector);
        }
    }

    /// The highest interrupt in service.
    #[inline(always)]
    fn serving(&mut self) -> Option<u8> {
        self.take_back_eoi();
        self.services.highest(self.pages, offset::ISR)
    }

    /// The part shared with other processors.
    pub const fn pages(&self) -> &'a Pages {
        self.pages
    }

    /// Writes IA32_APIC_BASE ("x2APIC State Transitions"). `physical_bits` is the processor's physical-address width.
    #[inline(never)]
    pub fn set_base(&mut self, value: u64, physical_bits: u8) -> Result<(), GeneralProtection> {
        let address = (1_u64.checked_shl(physical_bits.into()).unwrap_or(0)).wrapping_sub(1) & !0xfff;
        if value & !(address | BASE_BSP | BASE_X2 | BASE_ENABLE) != 0 {
            return Err(GeneralProtection);
        }
        let new = value & (BASE_ENABLE | BASE_X2);
        let allowed = match self.mode() {
            Mode::Disabled => new == 0 || new == BASE_ENABLE,
            Mode::XApic => new != BASE_X2,
            Mode::X2Apic => new == 0 || new == BASE_ENABLE | BASE_X2,
        };
        if !allowed {
            return Err(GeneralProtection);
        }
        let resets = new == 0 && self.mode() != Mode::Disabled;
        self.pages.set_base(value);
        if resets {
            // In the new mode: the logical ID of x2APIC mode is not one of xAPIC mode.
            let bit = self.eoi.bit();
            self.init();
            self.eoi.set_bit(bit);
        }
        Ok(())
    }

    /// The APIC's mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.pages.mode()
    }

    /// Handles the timer's expiry if it is due.
    pub fn expire_timer(&mut self, now: u64) -> Received {
        if self.timer.expire(now) { self.pages.local(lvt::TIMER) } else { Received::Nothing }
    }

    /// Like [`expire_timer`](Self::expire_timer), but returns the vector of an interrupt and leaves its
    /// delivery to the caller, by [`take_at_once`](Self::take_at_once),
    /// [`request_at_once`](Self::request_at_once) or [`post`](Self::post).
    #[inline(always)]
    pub fn fire_timer(&mut self, now: u64) -> Option<u8> {
        (self.timer.expire(now) && self.pages.lvt_enabled(lvt::TIMER)).then(|| self.pages.lvt_vector(lvt::TIMER))
    }

    /// The time at which [`expire_timer`](Self::expire_timer) must be called, in the unit of its `now`;
    /// `None` if the timer is off.
    pub fn timer_deadline(&self) -> Option<u64> {
        self.timer.deadline().filter(|_| self.pages.lvt_enabled(lvt::TIMER))
    }

    /// Whether the processor receives the 8259's interrupts: the APIC is disabled, or LINT0 is unmasked in
    /// ExtINT mode.
    pub fn passes_external(&self) -> bool {
        let external = || self.pages.lvt_delivery(lvt::LINT0) == Some(Delivery::External);
        self.mode() == Mode::Disabled || self.pages.lvt_enabled(lvt::LINT0) && external()
    }

    /// Merges posted interrupts into IRR.
    #[inline(always)]
    pub fn merge(&mut self) {
        if self.pages.has_posted() {
            self.merge_posted();
        }
    }

    // Not inlined, as are other rare parts below: the frequent ones would save more registers.
    #[inline(never)]
    fn merge_posted(&mut self) {
        let (requests, levels) = self.pages.merge();
        self.requests.extend(requests);
        self.exits.extend(levels);
        self.exits_changed |= !levels.is_empty();
        self.changed = true;
    }

    /// Whether any interrupt is requested, of any priority. Only without virtual-interrupt delivery, like
    /// [`pending`](Self::pending): with it, the processor takes requests that are still known here.
    #[inline(always)]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty() || self.pages.has_posted()
    }

    /// Fast path: puts an edge-triggered interrupt of this processor's own into service without a request.
    /// Returns false, without effect, if others are requested or its priority is too low.
    #[inline(always)]
    pub fn take_at_once(&mut self, vector: u8) -> bool {
        let serving = self.serving();
        let priority = self.pages.priority_over(serving);
        let can = !self.has_requests() && self.can_accept(vector) && vector >> 4 > priority >> 4;
        if can {
            self.serve(vector, || true);
            self.changed = true;
        }
        can
    }

    /// Fast path: requests an edge-triggered interrupt of this processor's own, with virtual-interrupt
    /// delivery; the caller updates RVI. Returns false, without effect, if it must be posted instead.
    #[inline(always)]
    pub fn request_at_once(&mut self, vector: u8) -> bool {
        let can = !self.changed && self.can_accept(vector);
        if can {
            self.requests.insert(self.pages, offset::IRR, vector);
        }
        can
    }

    /// Whether the vector is legal, the APIC enabled, and no level-triggered interrupt of the vector
    /// recorded.
    #[inline(always)]
    fn can_accept(&self, vector: u8) -> bool {
        vector >= 16 && self.pages.enabled() && !self.pages.contains(offset::TMR, vector)
    }

    /// Posts an edge-triggered interrupt of this processor's own.
    pub fn post(&mut self, vector: u8) -> Received {
        self.pages.accept(vector, false)
    }

    /// Fast path: ends the highest interrupt in service if that has no further effect. Returns false, without
    /// effect, if others are requested or it was level-triggered.
    #[inline(always)]
    pub fn end_at_once(&mut self) -> bool {
        if self.has_requests() {
            return false;
        }
        let Some(vector) = self.serving() else { return true };
        if self.pages.contains(offset::TMR, vector) {
            return false;
        }
        self.services.remove(self.pages, offset::ISR, vector);
        self.changed = true;
        true
    }

    /// The VMCS fields to write, if they changed since the last call. From then on the processor maintains
    /// them while the guest runs.
    #[inline(always)]
    pub fn take_status(&mut self) -> Option<Status> {
        self.merge();
        core::mem::take(&mut self.changed).then(|| self.status())
    }

    #[inline(never)]
    fn status(&mut self) -> Status {
        let serving = self.pages.highest(offset::ISR).unwrap_or(0);
        let exits = core::mem::take(&mut self.exits_changed).then_some(self.exits);
        let request = self.pages.highest(offset::IRR).unwrap_or(0);
        Status { interrupts: u16::from_le_bytes([request, serving]), exits }
    }

    /// Enables or disables virtual-interrupt delivery from the next entry on. In both cases the processor
    /// holds no state: the next [`take_status`](Self::take_status) returns all of it.
    pub fn set_assisted(&mut self, assisted: bool) {
        self.summarize();
        self.assisted = assisted;
        self.changed = true;
        self.exits_changed = true;
    }

    /// Updates the summaries if the processor may have changed IRR and ISR since the last exit
    /// ("Virtual-Interrupt Delivery", "EOI Virtualization").
    #[inline(never)]
    fn refresh(&mut self) {
        if self.assisted {
            self.summarize();
        }
    }

    fn summarize(&mut self) {
        self.requests = Summary::of(self.pages, offset::IRR);
        self.services = Summary::of(self.pages, offset::ISR);
    }

    /// Whether an interrupt is pending that would be delivered with interrupts enabled, by the processor or
    /// by software.
    #[inline(never)]
    pub fn is_pending(&mut self) -> bool {
        self.refresh();
        self.pending().is_some()
    }

    /// Whether virtual-interrupt delivery will deliver an interrupt at the next entry, with interrupts
    /// enabled ("Evaluation of Pending Virtual Interrupts"). `requested` is RVI; PPR is in the page, where only the
    /// processor updates it: TPR and ISR must not have changed since this exit. Returns false if the VMCS fields are
    /// not up to date, or the APIC is off.
    #[inline(always)]
    pub fn will_deliver(&self, requested: u8) -> bool {
        let priority = self.pages.get(offset::PPR) as u8;
        requested >> 4 > priority >> 4 && !self.changed && !self.pages.has_posted() && self.pages.enabled()
    }

    /// As [`will_deliver`](Self::will_deliver), at any time: with the priority of TPR and of the interrupt in service,
    /// whatever PPR is. `interrupts` is "Guest Interrupt Status" after [`take_status`](Self::take_status).
    #[inline(always)]
    pub fn can_deliver(&self, interrupts: u16) -> bool {
        let [requested, serving] = interrupts.to_le_bytes();
        requested >> 4 > self.pages.priority_over(Some(serving)) >> 4 && self.pages.enabled()
    }

    /// Whether the processor has no interrupt to deliver, and [`take_status`](Self::take_status) returns nothing: a quick test, which may
    /// say no for nothing. `interrupts` is "Guest Interrupt Status".
    #[inline(always)]
    pub fn is_quiet(&self, interrupts: u16) -> bool {
        interrupts as u8 == 0 && !self.changed && !self.pages.has_posted()
    }

    /// The vector to deliver now. Only without virtual-interrupt delivery, like
    /// [`acknowledge`](Self::acknowledge); see [`is_pending`](Self::is_pending).
    #[inline]
    pub fn pending(&mut self) -> Option<u8> {
        self.merge();
        let vector = self.requests.highest(self.pages, offset::IRR)?;
        let serving = self.serving();
        let priority = self.pages.priority_over(serving);
        (vector >> 4 > priority >> 4 && self.pages.enabled()).then_some(vector)
    }

    /// The highest requested vector regardless of its priority: TPR must fall below its class before it can be
    /// delivered ("TPR Threshold"). Only without virtual-interrupt delivery.
    #[inline]
    pub fn request(&self) -> Option<u8> {
        self.requests.highest(self.pages, offset::IRR)
    }

    /// Acknowledges the interrupt returned by [`pending`](Self::pending): moves it from IRR to ISR.
    pub fn acknowledge(&mut self) -> Option<u8> {
        self.pending().inspect(|&vector| self.take(vector))
    }

    /// Acknowledges `vector`, just returned by [`pending`](Self::pending).
    #[inline(always)]
    pub fn take(&mut self, vector: u8) {
        self.requests.remove(self.pages, offset::IRR, vector);
        let pages = self.pages;
        self.serve(vector, || !pages.contains(offset::TMR, vector));
        self.changed = true;
    }

    /// Fast path of [`acknowledge`](Self::acknowledge): puts the only posted interrupt into service, without a request in IRR. Returns
    /// `None` if others are requested or posted, or its priority is too low: it is requested then.
    #[inline(always)]
    pub fn acknowledge_posted(&mut self) -> Option<u8> {
        if !self.requests.is_empty() {
            return None;
        }
        let vector = self.pages.take_only()?;
        let serving = self.serving();
        let priority = self.pages.priority_over(serving);
        self.changed = true;
        if vector >> 4 > priority >> 4 && self.pages.enabled() {
            self.serve(vector, || true);
            return Some(vector);
        }
        self.requests.insert(self.pages, offset::IRR, vector);
        None
    }

    /// Reverts an acknowledge whose interrupt could not be delivered: it is requested again. Returns false, without effect,
    /// if this APIC has not acknowledged it.
    pub fn put_back(&mut self, vector: u8) -> bool {
        // Another processor of the guest may have cleared the bit.
        if !self.eoi.revoke(vector) {
            self.take_back_eoi();
            if !self.pages.contains(offset::ISR, vector) {
                return false;
            }
            self.services.remove(self.pages, offset::ISR, vector);
        }
        self.requests.insert(self.pages, offset::IRR, vector);
        self.changed = true;
        true
    }

    /// TPR; CR8 is its bits 7:4.
    pub fn task_priority(&self) -> u8 {
        self.pages.get(offset::TPR) as u8
    }

    /// Writes TPR.
    pub fn set_task_priority(&mut self, priority: u8) {
        self.pages.set(offset::TPR, priority.into());
    }

    /// Ends the highest interrupt in service. The processor may have put it there: with virtual-interrupt
    /// delivery, too, EOI writes are emulated if they arrive by an EPT violation or could not be virtualized.
    #[inline]
    pub fn end(&mut self) -> Effect {
        self.refresh();
        let Some(vector) = self.serving() else { return Effect::None };
        self.services.remove(self.pages, offset::ISR, vector);
        self.changed = true;
        self.ended(vector)
    }

    /// Handles the end of an interrupt that is no longer in service, possibly by EOI virtualization.
    pub fn ended(&mut self, vector: u8) -> Effect {
        let level = self.pages.contains(offset::TMR, vector);
        if level && self.pages.get(offset::SVR) & SVR_SUPPRESS == 0 { Effect::End(vector) } else { Effect::None }
    }

    fn send(&mut self, icr: u64) -> Effect {
        self.pages.set_icr(icr);
        let wide = self.mode() == Mode::X2Apic;
        let Some(message) = Message::from_icr(icr, wide) else {
            return Effect::None;
        };
        if matches!(message.delivery, Delivery::Fixed | Delivery::LowestPriority) && message.vector < 16 {
            self.pages.fail(error::SEND_ILLEGAL);
            return Effect::None;
        }
        Effect::Send(message)
    }
}
