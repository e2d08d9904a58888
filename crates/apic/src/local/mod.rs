//! The local APIC.

use crate::pages::{BASE_BSP, BASE_ENABLE, BASE_X2, SVR_SUPPRESS, error};
use crate::summary::Summary;
use crate::{Delivery, Message, Pages, Vectors, offset};
use timer::Timer;

pub(crate) mod lvt;
mod registers;
pub use registers::is_kept;
mod timer;

/// A write or read that the architecture answers with #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// How software reaches the APIC: bits 11:10 of IA32_APIC_BASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    Disabled,
    /// Through its page.
    XApic,
    /// Through MSRs.
    X2Apic,
}

/// What a write causes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing, or a change that [`LocalApic::pending`] tells.
    None,
    /// A message is to be sent.
    Send(Message),
    /// A level-triggered interrupt ended, which the I/O APICs are told.
    End(u8),
    /// [`LocalApic::timer_deadline`] may have changed.
    Timer,
}

/// What a message means for the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing, or what the processor has been told already.
    Nothing,
    /// [`LocalApic::pending`] may have changed, and the processor has not been told: a notification of posted interrupts will do.
    Interrupt,
    /// As before, but the guest that runs there must exit: the interrupt is level-triggered.
    Level,
    /// The 8259 has an interrupt for the processor.
    External,
    /// NMI.
    Nmi,
    /// SMI.
    Smi,
    /// INIT: the processor and this APIC ([`LocalApic::init`]) are reset, and it waits for a startup message.
    Init,
    /// Startup: a processor that waits for it begins in real mode at this page.
    Startup(u8),
}

/// The local APIC of one virtual processor, for its owner: the processor that runs it, while the guest does not.
#[derive(Debug)]
pub struct LocalApic<'a> {
    pages: &'a Pages,
    timer: Timer,
    /// Non-empty words of IRR and ISR. Stale once a guest has run while the processor delivers interrupts: see
    /// [`refresh`](Self::refresh).
    requests: Summary,
    services: Summary,
    /// The processor delivers interrupts, so that IRR and ISR change while the guest runs.
    assisted: bool,
    /// IRR or ISR is not what the last [`take_status`](Self::take_status) said.
    changed: bool,
    /// Vectors whose ends must exit: those that came level-triggered.
    exits: Vectors,
    /// They are not what the last [`take_status`](Self::take_status) said.
    exits_changed: bool,
}

/// What a processor that delivers virtual interrupts is told at entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// RVI in the low byte, SVI in the high one ("Guest Interrupt Status").
    pub interrupts: u16,
    /// The EOI-exit bitmap ("EOI-Exit Bitmap"), if it is not what it was. It only grows, until INIT: one exit too many does no harm.
    pub exits: Option<Vectors>,
}

impl<'a> LocalApic<'a> {
    /// One whose registers are in `pages`, which were reset.
    pub const fn new(pages: &'a Pages) -> Self {
        let (requests, services) = (Summary::EMPTY, Summary::EMPTY);
        let exits = Vectors::NONE;
        Self { pages, timer: Timer::STOPPED, requests, services, assisted: false, changed: true, exits, exits_changed: true }
    }

    /// Periods that are shorter than this are this long once they have run out, in the time of [`expire_timer`](Self::expire_timer)'s `now`.
    #[must_use]
    pub const fn with_least_period(mut self, ticks: u64) -> Self {
        self.timer.least = ticks;
        self
    }

    /// INIT resets all but the ID and IA32_APIC_BASE.
    pub fn init(&mut self) {
        self.pages.init();
        *self = Self { assisted: self.assisted, ..Self::new(self.pages).with_least_period(self.timer.least) };
    }

    /// What others reach of it.
    pub const fn pages(&self) -> &'a Pages {
        self.pages
    }

    /// Writes IA32_APIC_BASE ("x2APIC State Transitions"). `physical_bits` is the processor's physical-address width.
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
        if new == 0 && self.mode() != Mode::Disabled {
            self.init();
        }
        self.pages.set_base(value);
        Ok(())
    }

    /// How software reaches it.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.pages.mode()
    }

    /// The timer's time may have come.
    pub fn expire_timer(&mut self, now: u64) -> Received {
        if self.timer.expire(now) { self.pages.local(lvt::TIMER) } else { Received::Nothing }
    }

    /// The same; if it interrupts, the vector is returned, which is left to the caller: for [`take_at_once`](Self::take_at_once),
    /// [`request_at_once`](Self::request_at_once) or [`post`](Self::post).
    #[inline(always)]
    pub fn ring_timer(&mut self, now: u64) -> Option<u8> {
        (self.timer.expire(now) && lvt::enabled(self.pages, lvt::TIMER)).then(|| lvt::vector(self.pages, lvt::TIMER))
    }

    /// When [`expire_timer`](Self::expire_timer) must be called, in the time of its `now`; None if nobody waits for it.
    pub fn timer_deadline(&self) -> Option<u64> {
        self.timer.deadline().filter(|_| lvt::enabled(self.pages, lvt::TIMER))
    }

    /// Does the processor see the 8259's interrupts: is the APIC off, or LINT0 unmasked for them?
    pub fn passes_external(&self) -> bool {
        let external = || lvt::delivery(self.pages, lvt::LINT0) == Some(Delivery::External);
        self.mode() == Mode::Disabled || lvt::enabled(self.pages, lvt::LINT0) && external()
    }

    /// Takes in what was posted.
    #[inline(always)]
    pub fn merge(&mut self) {
        if self.pages.has_posted() {
            self.merge_posted();
        }
    }

    fn merge_posted(&mut self) {
        let (requests, levels) = self.pages.merge();
        self.requests.extend(requests);
        self.exits.extend(levels);
        self.exits_changed |= levels != Vectors::NONE;
        self.changed = true;
    }

    /// Whether an interrupt waits, whatever its priority.
    #[inline(always)]
    fn has_requests(&self) -> bool {
        !self.requests.is_empty() || self.pages.has_posted()
    }

    /// An edge-triggered interrupt of the processor's own is taken at once, without a request before. False, and nothing done, if others
    /// wait or it can't be taken by its priority.
    #[inline(always)]
    pub fn take_at_once(&mut self, vector: u8) -> bool {
        let priority = self.pages.priority_over(self.services.highest(self.pages, offset::ISR));
        let can = !self.has_requests() && self.can_accept(vector) && vector >> 4 > priority >> 4;
        if can {
            self.services.insert(self.pages, offset::ISR, vector);
            self.changed = true;
        }
        can
    }

    /// An edge-triggered interrupt of the processor's own is requested, for a processor that delivers interrupts and is told by the caller.
    /// False, and nothing done, if it is to be posted.
    #[inline(always)]
    pub fn request_at_once(&mut self, vector: u8) -> bool {
        let can = !self.changed && self.can_accept(vector);
        if can {
            self.requests.insert(self.pages, offset::IRR, vector);
        }
        can
    }

    /// A legal vector, an APIC that is enabled, and no trace of a level-triggered interrupt.
    #[inline(always)]
    fn can_accept(&self, vector: u8) -> bool {
        vector >= 16 && self.pages.enabled() && !self.pages.contains(offset::TMR, vector)
    }

    /// An edge-triggered interrupt of the processor's own waits from now on.
    pub fn post(&mut self, vector: u8) -> Received {
        self.pages.accept(vector, false)
    }

    /// Ends the highest interrupt in service, if nothing follows from that. False, and nothing done, if others wait or it was
    /// level-triggered.
    #[inline(always)]
    pub fn end_at_once(&mut self) -> bool {
        if self.has_requests() {
            return false;
        }
        let Some(vector) = self.services.highest(self.pages, offset::ISR) else { return true };
        if self.pages.contains(offset::TMR, vector) {
            return false;
        }
        self.services.remove(self.pages, offset::ISR, vector);
        self.changed = true;
        true
    }

    /// What the processor is to be told, if that is not what it was told last. From then on it keeps it itself, while the guest runs.
    #[inline(always)]
    pub fn take_status(&mut self) -> Option<Status> {
        self.merge();
        core::mem::take(&mut self.changed).then(|| self.status())
    }

    fn status(&mut self) -> Status {
        let serving = self.pages.highest(offset::ISR).unwrap_or(0);
        let exits = core::mem::take(&mut self.exits_changed).then_some(self.exits);
        let request = self.pages.highest(offset::IRR).unwrap_or(0);
        Status { interrupts: u16::from_le_bytes([request, serving]), exits }
    }

    /// Chooses whether the processor delivers interrupts from the next entry on. In either case it holds no state: the next
    /// [`take_status`](Self::take_status) returns all of it.
    pub fn set_assisted(&mut self, assisted: bool) {
        self.summarize();
        self.assisted = assisted;
        self.changed = true;
        self.exits_changed = true;
    }

    /// Brings the summaries up to date, if the processor may have changed IRR and ISR since the last exit ("Virtual-Interrupt Delivery",
    /// "EOI Virtualization").
    fn refresh(&mut self) {
        if self.assisted {
            self.summarize();
        }
    }

    fn summarize(&mut self) {
        self.requests = Summary::of(self.pages, offset::IRR);
        self.services = Summary::of(self.pages, offset::ISR);
    }

    /// Whether an interrupt is pending that the processor would take with interrupts enabled, whoever delivers it.
    pub fn is_pending(&mut self) -> bool {
        self.refresh();
        self.pending().is_some()
    }

    /// Whether a processor that delivers interrupts delivers one at the next entry, with interrupts enabled ("Evaluation of Pending Virtual
    /// Interrupts"): `requested` is its RVI. It keeps PPR in the page. False if it has not been told of everything yet, or the APIC is off.
    #[inline(always)]
    pub fn will_deliver(&self, requested: u8) -> bool {
        let priority = self.pages.get(offset::PPR) as u8;
        requested >> 4 > priority >> 4 && !self.changed && !self.pages.has_posted() && self.pages.enabled()
    }

    /// The vector that the processor would be interrupted by now. Only without its help in delivery, as [`acknowledge`](Self::acknowledge);
    /// see [`is_pending`](Self::is_pending).
    #[inline]
    pub fn pending(&mut self) -> Option<u8> {
        self.merge();
        let vector = self.requests.highest(self.pages, offset::IRR)?;
        let priority = self.pages.priority_over(self.services.highest(self.pages, offset::ISR));
        (vector >> 4 > priority >> 4 && self.pages.enabled()).then_some(vector)
    }

    /// The highest vector that is requested, whatever the priority: its class is what TPR must fall below for it to be delivered
    /// ("TPR Threshold"). For who has no help of the processor in delivery.
    #[inline]
    pub fn request(&self) -> Option<u8> {
        self.requests.highest(self.pages, offset::IRR)
    }

    /// The processor takes the interrupt that [`pending`](Self::pending) names.
    pub fn acknowledge(&mut self) -> Option<u8> {
        self.pending().inspect(|&vector| self.take(vector))
    }

    /// The processor takes `vector`, which [`pending`](Self::pending) has just named.
    #[inline(always)]
    pub fn take(&mut self, vector: u8) {
        self.requests.remove(self.pages, offset::IRR, vector);
        self.services.insert(self.pages, offset::ISR, vector);
        self.changed = true;
    }

    /// The processor could not take an interrupt after all, which it has acknowledged: it waits again.
    pub fn put_back(&mut self, vector: u8) {
        self.services.remove(self.pages, offset::ISR, vector);
        self.requests.insert(self.pages, offset::IRR, vector);
        self.changed = true;
    }

    /// TPR, of which CR8 is bits 7:4.
    pub fn task_priority(&self) -> u8 {
        self.pages.get(offset::TPR) as u8
    }

    /// Writes TPR.
    pub fn set_task_priority(&mut self, priority: u8) {
        self.pages.set(offset::TPR, priority.into());
    }

    /// Ends the highest interrupt in service. The processor may have put it there: a write of EOI is emulated also while the processor
    /// delivers interrupts, if the access reached Stile by the second stage or could not be virtualized.
    #[inline]
    pub fn end(&mut self) -> Effect {
        self.refresh();
        let Some(vector) = self.services.highest(self.pages, offset::ISR) else {
            return Effect::None;
        };
        self.services.remove(self.pages, offset::ISR, vector);
        self.changed = true;
        self.ended(vector)
    }

    /// An interrupt has ended, and is in service no more: by the processor itself, if it has virtualized the EOI.
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
