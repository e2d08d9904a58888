//! The local APIC.

use crate::pages::{BASE_BSP, BASE_ENABLE, BASE_X2, SVR_SUPPRESS, error};
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
    /// There may be something in IRR. Only a hint for who has no help of the processor: see [`refresh`](Self::refresh).
    requested: bool,
    /// IRR or ISR is not what the last [`take_status`](Self::take_status) said.
    changed: bool,
    /// Vectors whose ends must exit: those that came level-triggered.
    exits: Vectors,
}

/// What a processor that delivers virtual interrupts is told at entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// RVI in the low byte, SVI in the high one ("Guest Interrupt Status").
    pub interrupts: u16,
    /// The EOI-exit bitmap ("EOI-Exit Bitmap"). It only grows, until INIT: one exit too many does no harm.
    pub exits: Vectors,
}

impl<'a> LocalApic<'a> {
    /// One whose registers are in `pages`, which were reset.
    pub const fn new(pages: &'a Pages) -> Self {
        Self { pages, timer: Timer::STOPPED, requested: false, changed: true, exits: Vectors::NONE }
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
        *self = Self::new(self.pages).with_least_period(self.timer.least);
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
        if self.timer.expire(now) { self.local(lvt::TIMER) } else { Received::Nothing }
    }

    /// When [`expire_timer`](Self::expire_timer) must be called, in the time of its `now`; None if nobody waits for it.
    pub fn timer_deadline(&self) -> Option<u64> {
        self.timer.deadline().filter(|_| lvt::enabled(self.pages, lvt::TIMER))
    }

    /// An edge on pin LINT0 or LINT1 (`pin` 0 or 1).
    pub fn pulse(&mut self, pin: usize) -> Received {
        self.local(if pin == 0 { lvt::LINT0 } else { lvt::LINT1 })
    }

    /// Does the processor see the 8259's interrupts: is the APIC off, or LINT0 unmasked for them?
    pub fn passes_external(&self) -> bool {
        let external = || lvt::delivery(self.pages, lvt::LINT0) == Some(Delivery::External);
        self.mode() == Mode::Disabled || lvt::enabled(self.pages, lvt::LINT0) && external()
    }

    /// Takes in what was posted.
    #[inline(always)]
    pub fn merge(&mut self) {
        if let Some(levels) = self.pages.merge() {
            self.exits.extend(levels);
            self.requested = true;
            self.changed = true;
        }
    }

    /// What the processor is to be told, if that is not what it was told last. From then on it keeps it itself, while the guest runs.
    #[inline(always)]
    pub fn take_status(&mut self) -> Option<Status> {
        self.merge();
        core::mem::take(&mut self.changed).then(|| self.status())
    }

    fn status(&self) -> Status {
        let serving = self.pages.highest(offset::ISR).unwrap_or(0);
        Status { interrupts: u16::from_le_bytes([self.request().unwrap_or(0), serving]), exits: self.exits }
    }

    /// The processor has forgotten what it was told.
    pub fn forget_status(&mut self) {
        self.changed = true;
    }

    /// The processor has worked on the registers by itself since the last call: requests may be there that nobody posted.
    pub fn refresh(&mut self) {
        self.requested = true;
    }

    /// The vector that the processor would be interrupted by now.
    #[inline]
    pub fn pending(&mut self) -> Option<u8> {
        self.merge();
        if !self.requested {
            return None;
        }
        let Some(vector) = self.request() else {
            self.requested = false;
            return None;
        };
        (vector >> 4 > self.pages.processor_priority() >> 4 && self.pages.enabled()).then_some(vector)
    }

    /// The highest vector that is requested, whatever the priority: its class is what TPR must fall below for it to be delivered
    /// ("TPR Threshold").
    pub fn request(&self) -> Option<u8> {
        self.pages.highest(offset::IRR)
    }

    /// The processor takes the interrupt that [`pending`](Self::pending) names.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.pending()?;
        self.pages.remove(offset::IRR, vector);
        self.pages.insert(offset::ISR, vector);
        self.changed = true;
        Some(vector)
    }

    /// The processor could not take an interrupt after all, which it has acknowledged: it waits again.
    pub fn put_back(&mut self, vector: u8) {
        self.pages.remove(offset::ISR, vector);
        self.pages.insert(offset::IRR, vector);
        self.requested = true;
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

    /// Ends the highest interrupt in service.
    #[inline]
    pub fn end(&mut self) -> Effect {
        let Some(vector) = self.pages.highest(offset::ISR) else {
            return Effect::None;
        };
        self.pages.remove(offset::ISR, vector);
        self.changed = true;
        self.ended(vector)
    }

    /// An interrupt has ended, and is in service no more: by the processor itself, if it has virtualized the EOI.
    pub fn ended(&mut self, vector: u8) -> Effect {
        let level = self.pages.contains(offset::TMR, vector);
        if level && self.pages.get(offset::SVR) & SVR_SUPPRESS == 0 { Effect::End(vector) } else { Effect::None }
    }

    /// A source of the local vector table has an interrupt.
    fn local(&mut self, source: usize) -> Received {
        if !lvt::enabled(self.pages, source) || self.mode() == Mode::Disabled {
            return Received::Nothing;
        }
        match lvt::delivery(self.pages, source) {
            Some(Delivery::Fixed) => self.pages.accept(lvt::vector(self.pages, source), false),
            Some(Delivery::Nmi) => Received::Nmi,
            Some(Delivery::Smi) => Received::Smi,
            Some(Delivery::External) => Received::External,
            Some(Delivery::Init) => Received::Init,
            _ => Received::Nothing,
        }
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
