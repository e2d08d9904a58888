//! The local APIC.

use crate::{Delivery, Destination, Message, Vectors};
use lvt::Lvt;
use timer::Timer;

mod lvt;
mod registers;
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
    /// Nothing.
    Nothing,
    /// [`LocalApic::pending`] may have changed.
    Interrupt,
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

const BASE_BSP: u64 = 1 << 8;
const BASE_X2: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;

const SVR_ENABLE: u32 = 1 << 8;
const SVR_SUPPRESS: u32 = 1 << 12;

/// Bits of the error status register.
mod error {
    pub const SEND_ILLEGAL: u32 = 1 << 5;
    pub const RECEIVE_ILLEGAL: u32 = 1 << 6;
    pub const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// The local APIC of one virtual processor.
#[derive(Clone, Debug)]
pub struct LocalApic {
    id: u32,
    base: u64,
    tpr: u8,
    logical: u32,
    format: u32,
    spurious: u32,
    icr: u64,
    errors: u32,
    /// Errors since the guest last latched them.
    new_errors: u32,
    lvt: Lvt,
    timer: Timer,
    requests: Vectors,
    in_service: Vectors,
    triggers: Vectors,
}

impl LocalApic {
    /// After reset, in xAPIC mode: "Local APIC State After Power-Up or Reset". An xAPIC has the ID's low eight bits.
    pub const fn new(id: u32, bootstrap: bool) -> Self {
        Self {
            id,
            base: 0xfee0_0000 | BASE_ENABLE | if bootstrap { BASE_BSP } else { 0 },
            tpr: 0,
            logical: 0,
            format: u32::MAX,
            spurious: 0xff,
            icr: 0,
            errors: 0,
            new_errors: 0,
            lvt: Lvt::RESET,
            timer: Timer::STOPPED,
            requests: Vectors::NONE,
            in_service: Vectors::NONE,
            triggers: Vectors::NONE,
        }
    }

    /// INIT resets all but the ID and IA32_APIC_BASE.
    pub fn init(&mut self) {
        *self = Self { base: self.base, ..Self::new(self.id, false) };
    }

    /// IA32_APIC_BASE.
    pub const fn base(&self) -> u64 {
        self.base
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
        self.base = value;
        Ok(())
    }

    /// How software reaches it.
    pub const fn mode(&self) -> Mode {
        match (self.base & BASE_ENABLE != 0, self.base & BASE_X2 != 0) {
            (false, _) => Mode::Disabled,
            (true, false) => Mode::XApic,
            (true, true) => Mode::X2Apic,
        }
    }

    /// The guest-physical address of its page.
    pub const fn page(&self) -> u64 {
        self.base & 0x000f_ffff_ffff_f000
    }

    /// Is it enabled by IA32_APIC_BASE and by the spurious-interrupt vector register?
    pub const fn enabled(&self) -> bool {
        self.base & BASE_ENABLE != 0 && self.spurious & SVR_ENABLE != 0
    }

    /// Is a message of the APIC with ID `sender` for this one? Of a lowest-priority one, the caller then chooses among those that
    /// it is for the one of the lowest [`processor_priority`](Self::processor_priority).
    pub fn is_target(&self, destination: Destination, sender: u32) -> bool {
        let wide = self.mode() == Mode::X2Apic;
        if self.mode() == Mode::Disabled {
            return false;
        }
        match destination {
            Destination::Own => self.id == sender,
            Destination::All => true,
            Destination::Others => self.id != sender,
            Destination::Physical(id) => id == if wide { self.id } else { self.id & 0xff },
            Destination::Logical { mask, wide: true } if wide => {
                let own = self.logical_id();
                mask >> 16 == 0xffff || mask >> 16 == own >> 16 && mask & own & 0xffff != 0
            }
            // From an xAPIC, or by MSI and I/O APIC: eight bits, by the format register, or cluster 0 of an x2APIC.
            Destination::Logical { mask, wide: false } if wide => self.logical_id() >> 16 == 0 && mask & self.logical_id() & 0xff != 0,
            Destination::Logical { mask, .. } => {
                let own = self.logical >> 24;
                match self.format >> 28 {
                    0xf => mask & own != 0,
                    0 => (mask >> 4 == own >> 4 || mask >> 4 == 0xf) && mask & own & 0xf != 0,
                    _ => false,
                }
            }
        }
    }

    /// A message arrives.
    pub fn receive(&mut self, message: Message) -> Received {
        match message.delivery {
            Delivery::Fixed | Delivery::LowestPriority => self.accept(message.vector, message.level),
            Delivery::Smi => Received::Smi,
            Delivery::Nmi => Received::Nmi,
            Delivery::Init => Received::Init,
            Delivery::Startup => Received::Startup(message.vector),
            Delivery::External => Received::External,
        }
    }

    /// The timer's time may have come.
    pub fn expire_timer(&mut self, now: u64) -> Received {
        if self.timer.expire(now, self.lvt.timer_mode()) { self.local(lvt::TIMER) } else { Received::Nothing }
    }

    /// When [`expire_timer`](Self::expire_timer) must be called, in the time of its `now`; None if nobody waits for it.
    pub fn timer_deadline(&self) -> Option<u64> {
        self.timer.deadline().filter(|_| self.lvt.enabled(lvt::TIMER))
    }

    /// An edge on pin LINT0 or LINT1 (`pin` 0 or 1).
    pub fn pulse(&mut self, pin: usize) -> Received {
        self.local(if pin == 0 { lvt::LINT0 } else { lvt::LINT1 })
    }

    /// Does the processor see the 8259's interrupts: is the APIC off, or LINT0 unmasked for them?
    pub fn passes_external(&self) -> bool {
        self.mode() == Mode::Disabled || self.lvt.enabled(lvt::LINT0) && self.lvt.delivery(lvt::LINT0) == Some(Delivery::External)
    }

    /// The vector that the processor would be interrupted by now.
    #[inline]
    pub fn pending(&self) -> Option<u8> {
        let vector = self.requests.highest()?;
        (vector >> 4 > self.processor_priority() >> 4 && self.enabled()).then_some(vector)
    }

    /// The processor takes the interrupt that [`pending`](Self::pending) names.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.pending()?;
        self.requests.remove(vector);
        self.in_service.insert(vector);
        Some(vector)
    }

    /// PPR.
    #[inline]
    pub fn processor_priority(&self) -> u8 {
        let serving = self.in_service.highest().unwrap_or(0);
        if self.tpr >> 4 >= serving >> 4 { self.tpr } else { serving & 0xf0 }
    }

    /// TPR, of which CR8 is bits 7:4.
    pub const fn task_priority(&self) -> u8 {
        self.tpr
    }

    /// Writes TPR.
    pub fn set_task_priority(&mut self, priority: u8) {
        self.tpr = priority;
    }

    /// Ends the highest interrupt in service.
    #[inline]
    pub fn end(&mut self) -> Effect {
        let Some(vector) = self.in_service.highest() else {
            return Effect::None;
        };
        self.in_service.remove(vector);
        if self.triggers.contains(vector) && self.spurious & SVR_SUPPRESS == 0 { Effect::End(vector) } else { Effect::None }
    }

    /// A fixed interrupt, from within or without.
    fn accept(&mut self, vector: u8, level: bool) -> Received {
        if !self.enabled() {
            return Received::Nothing;
        }
        if vector < 16 {
            return self.fail(error::RECEIVE_ILLEGAL);
        }
        self.requests.insert(vector);
        self.triggers.set(vector, level);
        Received::Interrupt
    }

    /// A source of the local vector table has an interrupt.
    fn local(&mut self, source: usize) -> Received {
        if !self.lvt.enabled(source) || self.mode() == Mode::Disabled {
            return Received::Nothing;
        }
        match self.lvt.delivery(source) {
            Some(Delivery::Fixed) => self.accept(self.lvt.vector(source), false),
            Some(Delivery::Nmi) => Received::Nmi,
            Some(Delivery::Smi) => Received::Smi,
            Some(Delivery::External) => Received::External,
            Some(Delivery::Init) => Received::Init,
            _ => Received::Nothing,
        }
    }

    /// Remembers an error, and interrupts if that is wanted.
    fn fail(&mut self, error: u32) -> Received {
        self.new_errors |= error;
        let vector = self.lvt.vector(lvt::ERROR);
        // A vector that is itself illegal can't be told.
        if self.lvt.enabled(lvt::ERROR) && vector >= 16 && self.enabled() {
            self.requests.insert(vector);
            self.triggers.remove(vector);
            return Received::Interrupt;
        }
        Received::Nothing
    }

    const fn logical_id(&self) -> u32 {
        if self.base & BASE_X2 != 0 { self.id >> 4 << 16 | 1 << (self.id & 0xf) } else { self.logical }
    }

    fn send(&mut self, icr: u64) -> Effect {
        self.icr = icr;
        let wide = self.mode() == Mode::X2Apic;
        let Some(message) = Message::from_icr(icr, wide) else {
            return Effect::None;
        };
        if matches!(message.delivery, Delivery::Fixed | Delivery::LowestPriority) && message.vector < 16 {
            self.fail(error::SEND_ILLEGAL);
            return Effect::None;
        }
        Effect::Send(message)
    }
}
