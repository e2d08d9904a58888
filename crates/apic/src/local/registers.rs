//! Reads and writes of registers, by page and by MSR.

use super::lvt::{self, Lvt, TimerMode};
use super::{Effect, GeneralProtection, LocalApic, Mode, SVR_ENABLE, error};
use crate::{Delivery, Destination, Message, offset};

/// An integrated APIC with seven local vectors that can suppress EOI broadcasts.
const VERSION: u32 = 0x14 | 6 << 16 | 1 << 24;
/// What SVR holds.
const SVR: u32 = 0x11ff;
/// What the ICR holds: not the delivery status.
const ICR_LOW: u32 = 0xc_cfff;

impl LocalApic {
    /// The guest reads 32 bits at `offset` in the APIC's page, which registers' accesses are aligned in to 16 bytes. What is no
    /// register reads as 0.
    #[inline]
    pub fn read(&mut self, offset: u32, now: u64) -> u32 {
        if let Some(value) = self.register(offset, now) {
            return value;
        }
        self.fail(error::ILLEGAL_REGISTER);
        0
    }

    /// The guest writes 32 bits at `offset` in the APIC's page.
    pub fn write(&mut self, offset: u32, value: u32, now: u64) -> Effect {
        match offset {
            offset::LDR => self.logical = value & 0xff00_0000,
            offset::DFR => self.format = value | 0x0fff_ffff,
            offset::ICR => return self.send(self.icr & !0xffff_ffff | u64::from(value & ICR_LOW)),
            offset::ICR_HIGH => self.icr = self.icr & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32,
            // Read-only.
            offset::ID | offset::VERSION | offset::APR | offset::PPR | offset::RRD | offset::CURRENT_COUNT => {}
            offset::ISR..offset::ESR => {}
            _ => return self.write_common(offset, value, now),
        }
        Effect::None
    }

    /// RDMSR of an x2APIC register, `msr` from 0x800 to 0x8ff.
    pub fn read_msr(&self, msr: u32, now: u64) -> Result<u64, GeneralProtection> {
        let offset = self.msr_offset(msr)?;
        match offset {
            offset::ICR => Ok(self.icr),
            offset::ID => Ok(self.id.into()),
            offset::LDR => Ok(self.logical_id().into()),
            offset::ICR_HIGH | offset::DFR | offset::EOI | offset::APR | offset::RRD => Err(GeneralProtection),
            _ => self.register(offset, now).map(u64::from).ok_or(GeneralProtection),
        }
    }

    /// WRMSR of an x2APIC register, `msr` from 0x800 to 0x8ff.
    pub fn write_msr(&mut self, msr: u32, value: u64, now: u64) -> Result<Effect, GeneralProtection> {
        let offset = self.msr_offset(msr)?;
        let writable = match offset {
            offset::ICR => 0xffff_ffff_0000_0000 | u64::from(ICR_LOW),
            offset::TPR | offset::SELF_IPI => 0xff,
            offset::EOI | offset::ESR => 0,
            offset::SVR => SVR.into(),
            offset::INITIAL_COUNT => 0xffff_ffff,
            offset::DIVIDE => 0xb,
            _ => match Lvt::at(offset) {
                // The delivery status and the remote IRR may be written with what was read.
                Some(entry) => u64::from(Lvt::writable(entry) | 1 << 12 | 1 << 14),
                None => return Err(GeneralProtection),
            },
        };
        if value & !writable != 0 {
            return Err(GeneralProtection);
        }
        Ok(match offset {
            offset::ICR => self.send(value),
            offset::SELF_IPI => {
                let (destination, delivery) = (Destination::Own, Delivery::Fixed);
                if value < 16 {
                    self.fail(error::SEND_ILLEGAL);
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

    /// WRMSR of IA32_TSC_DEADLINE, in the time of [`expire_timer`](LocalApic::expire_timer)'s `now`.
    pub fn set_tsc_deadline(&mut self, value: u64) {
        self.timer.set_deadline(value, self.lvt.timer_mode());
    }

    fn msr_offset(&self, msr: u32) -> Result<u32, GeneralProtection> {
        match msr.checked_sub(offset::MSR_BASE) {
            Some(index @ 0..0x100) if self.mode() == Mode::X2Apic => Ok(index << 4),
            _ => Err(GeneralProtection),
        }
    }

    /// A register as both ways show it; None if there is none.
    fn register(&self, offset: u32, now: u64) -> Option<u32> {
        Some(match offset {
            offset::ID => self.id << 24,
            offset::VERSION => VERSION,
            offset::TPR => self.tpr.into(),
            offset::PPR => self.processor_priority().into(),
            offset::APR | offset::RRD | offset::EOI => 0,
            offset::LDR => self.logical,
            offset::DFR => self.format,
            offset::SVR => self.spurious,
            offset::ISR..offset::TMR => self.in_service.word(offset >> 4),
            offset::TMR..offset::IRR => self.triggers.word(offset >> 4),
            offset::IRR..offset::ESR => self.requests.word(offset >> 4),
            offset::ESR => self.errors,
            offset::ICR => self.icr as u32,
            offset::ICR_HIGH => (self.icr >> 32) as u32,
            offset::INITIAL_COUNT => self.timer.initial(),
            offset::CURRENT_COUNT => self.timer.count(now, self.lvt.timer_mode()),
            offset::DIVIDE => self.timer.divide(),
            _ => self.lvt.read(Lvt::at(offset)?),
        })
    }

    /// A register that both ways write alike.
    fn write_common(&mut self, offset: u32, value: u32, now: u64) -> Effect {
        match offset {
            offset::TPR => self.tpr = value as u8,
            offset::EOI => return self.end(),
            offset::SVR => {
                self.spurious = value & SVR;
                if value & SVR_ENABLE == 0 {
                    self.lvt.mask_all();
                    return Effect::Timer;
                }
            }
            // A write of any value shows the errors since the last one.
            offset::ESR => self.errors = core::mem::take(&mut self.new_errors),
            offset::INITIAL_COUNT => {
                self.timer.set_initial(value, now, self.lvt.timer_mode());
                return Effect::Timer;
            }
            offset::DIVIDE => {
                self.timer.set_divide(value, now, self.lvt.timer_mode());
                return Effect::Timer;
            }
            _ => match Lvt::at(offset) {
                Some(lvt::TIMER) => {
                    let old: TimerMode = self.lvt.timer_mode();
                    self.lvt.write(lvt::TIMER, value, self.spurious & SVR_ENABLE != 0);
                    self.timer.change_mode(old, self.lvt.timer_mode());
                    return Effect::Timer;
                }
                Some(entry) => self.lvt.write(entry, value, self.spurious & SVR_ENABLE != 0),
                None => {
                    self.fail(error::ILLEGAL_REGISTER);
                }
            },
        }
        Effect::None
    }
}
