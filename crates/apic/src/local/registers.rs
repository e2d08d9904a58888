//! Register reads and writes, by page and by MSR.

use super::{Effect, EoiBit, GeneralProtection, LocalApic};
use crate::pages::{SVR_ENABLE, error};
use crate::{Delivery, Destination, Message, Mode, lvt, offset};

/// The writable bits of SVR.
pub(super) const SVR: u32 = 0x11ff;
/// Writable bits of the ICR's low half: all defined ones except the delivery status.
pub(super) const ICR_LOW: u32 = 0xc_cfff;

/// Whether the processor can answer RDMSR of an x2APIC register (`msr` 0x800 to 0x8ff) from the virtual-APIC
/// page ("Virtualizing MSR-Based APIC Accesses"). PPR is valid there only with virtual-interrupt delivery
/// (`delivers`).
pub const fn reads_from_page(msr: u32, delivers: bool) -> bool {
    let offset = msr.wrapping_sub(offset::MSR_BASE) << 4;
    match offset {
        offset::ID | offset::VERSION | offset::TPR | offset::LDR | offset::SVR | offset::ESR | offset::ICR => true,
        offset::INITIAL_COUNT | offset::DIVIDE | offset::ISR..offset::ESR => true,
        offset::PPR => delivers,
        _ => lvt::at(offset).is_some(),
    }
}

/// Registers whose value is stored in the page, bit *n* for offset 16 *n*: ID, VERSION, TPR; LDR, DFR, SVR; TMR, IRR,
/// ESR; the local vectors and the ICR; INITIAL_COUNT, DIVIDE. Not ISR, which lacks a vector while the guest's EOI bit is lent.
const PLAIN: u64 = bits(0x02, 0x03) | bits(0x08, 0x08) | bits(0x0d, 0x0f) | bits(0x18, 0x28) | bits(0x2f, 0x38) | bits(0x3e, 0x3e);

const fn bits(first: u32, last: u32) -> u64 {
    (u64::MAX << first) & (u64::MAX >> (63 - last))
}

impl<B: EoiBit> LocalApic<'_, B> {
    /// Emulates a 32-bit read at `offset` in the APIC's page; register accesses are aligned to 16 bytes. A reserved
    /// offset reads as 0 and raises the error "illegal register address".
    #[inline]
    pub fn read(&mut self, offset: u32, now: u64) -> u32 {
        if let Some(value) = self.register(offset, now) {
            return value;
        }
        self.pages.fail(error::ILLEGAL_REGISTER);
        0
    }

    /// Emulates a 32-bit write at `offset` in the APIC's page. A reserved offset raises the error "illegal register
    /// address"; writes of read-only registers are ignored.
    pub fn write(&mut self, offset: u32, value: u32, now: u64) -> Effect {
        match offset {
            offset::EOI => return self.end(),
            offset::LDR => self.pages.set(offset::LDR, value & 0xff00_0000),
            offset::DFR => self.pages.set(offset::DFR, value | 0x0fff_ffff),
            offset::ICR => return self.send(self.pages.icr() & !0xffff_ffff | u64::from(value & ICR_LOW)),
            offset::ICR_HIGH => self.pages.set(offset::ICR_HIGH, value & 0xff00_0000),
            // Read-only, but a processor with APIC virtualization has already stored the value: restore the page.
            offset::ID => self.pages.show_identity(),
            // Read-only.
            offset::VERSION | offset::APR | offset::PPR | offset::RRD | offset::CURRENT_COUNT => {}
            offset::ISR..offset::ESR => {}
            _ => return self.write_common(offset, value, now),
        }
        Effect::None
    }

    /// Fast path of an ICR write in the APIC's page that sends a fixed interrupt to this APIC only: performs
    /// the write and returns the vector, whose delivery is left to the caller, as for
    /// [`fire_timer`](Self::fire_timer). Otherwise `None`, without effect.
    #[inline(always)]
    pub fn send_to_self(&mut self, value: u32) -> Option<u8> {
        /// Destination shorthand and delivery mode: self, fixed.
        const KIND: u32 = 0b11 << 18 | 0b111 << 8;
        const TO_SELF: u32 = 0b01 << 18;
        let vector = value as u8;
        if value & KIND != TO_SELF || vector < 16 {
            return None;
        }
        self.pages.set(offset::ICR, value & ICR_LOW);
        Some(vector)
    }

    /// Fast path of a write to the ICR's MSR that sends a fixed interrupt to a single APIC: performs the
    /// write and returns APIC ID and vector for the caller to send. `None`, without effect, for every other
    /// command, for a value that faults, and for other APICs if there are gaps between identifiers.
    #[inline(always)]
    pub fn send_to_one(&mut self, value: u64) -> Option<(u32, u8)> {
        /// Destination shorthand, destination mode and delivery mode, and reserved bits ("Interrupt Command Register (ICR)").
        const KIND: u32 = 0b11 << 18 | 0b1111 << 8 | !ICR_LOW;
        const TO_SELF: u32 = 0b01 << 18;
        let (low, id) = (value as u32, (value >> 32) as u32);
        let id = match low & KIND {
            0 if id < self.id_limit => id,
            TO_SELF => self.pages.id(),
            _ => return None,
        };
        let vector = low as u8;
        if vector < 16 {
            return None;
        }
        self.pages.set_x2apic_icr(value);
        Some((id, vector))
    }

    /// Handles the side effects of a register write at `offset` that the processor's APIC virtualization has
    /// performed in the page ("APIC-Write VM Exits").
    pub fn written(&mut self, offset: u32, now: u64) -> Effect {
        let value = self.pages.get(offset);
        match offset {
            // An illegal vector, which the processor doesn't send, is refused like a WRMSR of it.
            offset::SELF_IPI => self.write_msr(offset::MSR_BASE + (offset >> 4), value.into(), now).unwrap_or(Effect::None),
            _ => self.write(offset, value, now),
        }
    }

    /// RDMSR of an x2APIC register, `msr` from 0x800 to 0x8ff. #GP outside of x2APIC mode, and for registers that don't
    /// exist or can't be read.
    pub fn read_msr(&mut self, msr: u32, now: u64) -> Result<u64, GeneralProtection> {
        let offset = self.msr_offset(msr)?;
        match offset {
            offset::ICR => Ok(self.pages.icr()),
            offset::ICR_HIGH | offset::DFR | offset::EOI | offset::APR | offset::RRD => Err(GeneralProtection),
            _ => self.register(offset, now).map(u64::from).ok_or(GeneralProtection),
        }
    }

    /// WRMSR of an x2APIC register, `msr` from 0x800 to 0x8ff. #GP outside of x2APIC mode, for registers that don't exist or
    /// are read-only, and for reserved bits.
    #[inline(never)]
    pub fn write_msr(&mut self, msr: u32, value: u64, now: u64) -> Result<Effect, GeneralProtection> {
        let offset = self.msr_offset(msr)?;
        let writable = match offset {
            offset::ICR => 0xffff_ffff_0000_0000 | u64::from(ICR_LOW),
            offset::TPR | offset::SELF_IPI => 0xff,
            offset::EOI | offset::ESR => 0,
            offset::SVR => SVR.into(),
            offset::INITIAL_COUNT => 0xffff_ffff,
            offset::DIVIDE => 0xb,
            _ => match lvt::at(offset) {
                // The read-only bits delivery status and remote IRR may be written with the value read.
                Some(entry) => u64::from(lvt::WRITABLE[entry] | 1 << 12 | 1 << 14),
                None => return Err(GeneralProtection),
            },
        };
        if value & !writable != 0 {
            return Err(GeneralProtection);
        }
        Ok(match offset {
            offset::EOI => self.end(),
            offset::ICR => self.send(value),
            offset::SELF_IPI => {
                let (destination, delivery) = (Destination::Own, Delivery::Fixed);
                if value < 16 {
                    self.pages.fail(error::SEND_ILLEGAL);
                    return Ok(Effect::None);
                }
                Effect::Send(Message { destination, delivery, vector: value as u8, level: false })
            }
            _ => self.write_common(offset, value as u32, now),
        })
    }

    /// RDMSR of IA32_TSC_DEADLINE.
    pub fn tsc_deadline(&self) -> u64 {
        self.timer.deadline_register()
    }

    /// WRMSR of IA32_TSC_DEADLINE, in units of [`expire_timer`](LocalApic::expire_timer)'s `now`. Ignored unless the timer is
    /// in deadline mode.
    pub fn set_tsc_deadline(&mut self, value: u64) {
        if let Some(register) = self.timer.deadline_slot() {
            *register = value;
        }
    }

    /// The storage of IA32_TSC_DEADLINE, while a write of it needs no more than storing the value and calling
    /// [`expire_timer`](LocalApic::expire_timer) at that time: in deadline mode, and not masked. Valid until
    /// the timer's local vector, SVR or IA32_APIC_BASE is written.
    pub fn tsc_deadline_slot(&mut self) -> Option<&mut u64> {
        if self.pages.lvt_enabled(lvt::TIMER) { self.timer.deadline_slot() } else { None }
    }

    /// Delays the timer's next expiry by `by` units of `now`, the time for which the vCPU was paused. Must not be called
    /// while the deadline is lent.
    pub fn hold_timer(&mut self, by: u64) {
        self.timer.hold(by);
    }

    /// Whether the guest's IA32_TSC_DEADLINE can be lent to the physical register: the timer is in deadline mode and not masked.
    pub(crate) fn takes_deadline(&self) -> bool {
        self.pages.lvt_enabled(lvt::TIMER) && self.timer.has_deadlines()
    }

    /// Lends IA32_TSC_DEADLINE to the physical register, and returns it. Until [`return_deadline`](Self::return_deadline),
    /// writes of the timer's local vector and of SVR return [`Effect::Reclaim`] without effect.
    pub(crate) fn lend_deadline(&mut self) -> u64 {
        self.timer.lend(self.pages.lvt_vector(lvt::TIMER))
    }

    /// Takes back a lent deadline. `fired`: it has expired meanwhile and the guest has not received its interrupt, which
    /// becomes pending here.
    pub(crate) fn return_deadline(&mut self, deadline: u64, fired: bool) {
        if let Some(vector) = self.timer.give_back(deadline)
            && fired
        {
            self.pages.accept(vector, false);
        }
    }

    /// The vector of the timer's local entry, which may be illegal (below 16).
    pub fn timer_vector(&self) -> u8 {
        self.pages.lvt_vector(lvt::TIMER)
    }

    /// Returns the vector of the guest's timer while its deadline is lent: an interrupt of the physical timer stands for it.
    #[inline(always)]
    pub const fn lent_timer(&self) -> Option<u8> {
        self.timer.lent()
    }

    /// Brings the timer's next expiry forward by `by` units of `now`, which have passed for the vCPU. Must not be called
    /// while the deadline is lent.
    pub fn advance_timer(&mut self, by: u64) {
        self.timer.advance(by);
    }

    fn msr_offset(&self, msr: u32) -> Result<u32, GeneralProtection> {
        match msr.checked_sub(offset::MSR_BASE) {
            Some(index @ 0..0x100) if self.mode() == Mode::X2Apic => Ok(index << 4),
            _ => Err(GeneralProtection),
        }
    }

    /// Returns the value of a register that is stored in the page; `None` for all others, and for reserved or misaligned
    /// offsets.
    #[inline]
    pub fn plain(&self, offset: u32) -> Option<u32> {
        (offset & 0xf == 0 && offset < 0x400 && PLAIN >> (offset >> 4) & 1 != 0).then(|| self.pages.get(offset))
    }

    /// Returns a register's value, which is that in xAPIC and x2APIC mode; `None` if it doesn't exist.
    #[inline(always)]
    pub fn register(&mut self, offset: u32, now: u64) -> Option<u32> {
        if matches!(offset, offset::PPR | offset::ISR..offset::TMR) {
            self.take_back_eoi();
        }
        self.stored(offset, now)
    }

    /// [`register`](Self::register) after [`take_back_eoi`](Self::take_back_eoi).
    #[inline(never)]
    fn stored(&self, offset: u32, now: u64) -> Option<u32> {
        Some(match offset {
            offset::PPR => self.pages.processor_priority().into(),
            offset::APR | offset::RRD | offset::EOI => 0,
            offset::CURRENT_COUNT => self.timer.count(now),
            offset::ID | offset::VERSION | offset::TPR | offset::LDR | offset::DFR | offset::SVR => self.pages.get(offset),
            offset::ESR | offset::ICR | offset::ICR_HIGH | offset::INITIAL_COUNT | offset::DIVIDE => self.pages.get(offset),
            offset::ISR..offset::ESR => self.pages.get(offset & !0xf),
            _ => self.pages.get(lvt::offset_of(lvt::at(offset)?)),
        })
    }

    /// Writes a register with the same effect in both modes, off the hot path.
    #[inline(never)]
    fn write_common(&mut self, offset: u32, value: u32, now: u64) -> Effect {
        if self.timer.lent().is_some() && (lvt::at(offset) == Some(lvt::TIMER) || offset == offset::SVR) {
            return Effect::Reclaim { offset, value };
        }
        let enabled = self.pages.get(offset::SVR) & SVR_ENABLE != 0;
        match offset {
            offset::TPR => self.pages.set(offset::TPR, value & 0xff),
            offset::SVR => {
                self.pages.set(offset::SVR, value & SVR);
                if value & SVR_ENABLE == 0 {
                    self.pages.lvt_mask_all();
                    self.timer.set_unmasked(false, now);
                    return Effect::Timer;
                }
            }
            // A write latches the errors since the last write.
            offset::ESR => self.pages.set(offset::ESR, self.pages.take_errors()),
            offset::INITIAL_COUNT => {
                self.timer.set_initial(value, now);
                // Ignored in deadline mode.
                self.pages.set(offset::INITIAL_COUNT, self.timer.initial());
                return Effect::Timer;
            }
            offset::DIVIDE => {
                self.timer.set_divide(value, now);
                self.pages.set(offset::DIVIDE, self.timer.divide());
                return Effect::Timer;
            }
            _ => match lvt::at(offset) {
                Some(lvt::TIMER) => {
                    self.pages.lvt_write(lvt::TIMER, value, enabled);
                    self.timer.set_unmasked(self.pages.lvt_enabled(lvt::TIMER), now);
                    self.timer.change_mode(self.pages.lvt_timer_mode());
                    // Some changes stop the timer.
                    self.pages.set(offset::INITIAL_COUNT, self.timer.initial());
                    return Effect::Timer;
                }
                Some(entry) => self.pages.lvt_write(entry, value, enabled),
                None => {
                    self.pages.fail(error::ILLEGAL_REGISTER);
                }
            },
        }
        Effect::None
    }
}
