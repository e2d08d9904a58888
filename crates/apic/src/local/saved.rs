//! Local APICs in snapshots.

use stile_snapshot::pc::{APIC_REGISTERS, LocalApic as Saved};

use super::registers::{ICR_LOW, SVR};
use super::{EoiBit, GeneralProtection, LocalApic, Timer};
use crate::pages::{BASE_BSP, BASE_ENABLE, BASE_X2, ICR_UPPER, SVR_ENABLE, error};
use crate::{Mode, Vectors, lvt, offset};

/// Offset of a saved register.
const fn offset_of(index: usize) -> u32 {
    16 * index as u32
}

impl<B: EoiBit> LocalApic<'_, B> {
    /// Exports the state at `now`. The vCPU is not loaded, so that the timer is not lent.
    pub fn save(&mut self, now: u64) -> Saved {
        self.merge();
        self.take_back_eoi();
        let mut registers = [[0; 32]; APIC_REGISTERS / 32];
        for (index, register) in registers.as_flattened_mut().iter_mut().enumerate() {
            *register = match offset_of(index) {
                // Only the processor keeps it up.
                offset::PPR => self.pages.processor_priority().into(),
                offset => self.pages.get(offset),
            };
        }
        Saved {
            base: self.pages.base(),
            registers,
            icr_high: self.pages.get(ICR_UPPER),
            errors: self.pages.errors(),
            timer: self.timer.left(now),
        }
    }

    /// Imports a state at `now`, reduced to one that a guest could have produced, into an APIC that was reset.
    /// `physical_bits` as for [`set_base`](Self::set_base).
    ///
    /// # Errors
    /// IA32_APIC_BASE does not take the value.
    pub fn restore(&mut self, from: &Saved, physical_bits: u8, now: u64) -> Result<(), GeneralProtection> {
        let address = (1_u64.checked_shl(physical_bits.into()).unwrap_or(0)).wrapping_sub(1) & !0xfff;
        if from.base & !(address | BASE_BSP | BASE_X2 | BASE_ENABLE) != 0 || from.base & (BASE_X2 | BASE_ENABLE) == BASE_X2 {
            return Err(GeneralProtection);
        }
        self.pages.restore_base(from.base);
        self.init();
        if self.mode() == Mode::Disabled {
            return Ok(());
        }
        let wide = self.mode() == Mode::X2Apic;
        let saved = |offset: u32| from.registers.as_flattened().get(offset as usize >> 4).copied().unwrap_or(0);
        let enabled = saved(offset::SVR) & SVR_ENABLE != 0;
        for offset in (0..APIC_REGISTERS).map(offset_of) {
            let value = saved(offset);
            let value = match offset {
                offset::TPR => value & 0xff,
                offset::LDR if !wide => value & 0xff00_0000,
                offset::DFR => value | 0x0fff_ffff,
                offset::SVR => value & SVR,
                // Vectors below 16 are illegal.
                offset::ISR | offset::TMR | offset::IRR => value & 0xffff_0000,
                offset::ISR..offset::ESR => value,
                offset::ESR => value & ERRORS,
                offset::ICR => value & ICR_LOW,
                offset::ICR_HIGH if !wide => value & 0xff00_0000,
                offset::INITIAL_COUNT => value,
                offset::DIVIDE => value & 0xb,
                _ => {
                    if let Some(entry) = lvt::at(offset) {
                        self.pages.lvt_write(entry, value, enabled);
                    }
                    continue;
                }
            };
            self.pages.set(offset, value);
        }
        if wide {
            self.pages.set(ICR_UPPER, from.icr_high);
        }
        self.pages.set_errors(from.errors & ERRORS);
        self.pages.set(offset::PPR, self.pages.processor_priority().into());
        let unmasked = self.pages.lvt_enabled(lvt::TIMER);
        let (initial, divide, mode) = (saved(offset::INITIAL_COUNT), saved(offset::DIVIDE), self.pages.lvt_timer_mode());
        let least = self.timer.least;
        self.timer = Timer::restored(initial, divide, mode, unmasked, from.timer, now);
        self.timer.least = least;
        self.pages.set(offset::INITIAL_COUNT, self.timer.initial());
        let mut levels = [0; 4];
        for vector in (0..=u8::MAX).filter(|&vector| self.pages.contains(offset::TMR, vector)) {
            levels[usize::from(vector >> 6)] |= 1 << (vector & 63);
        }
        self.exits = Vectors::from_words(levels);
        (self.changed, self.exits_changed) = (true, true);
        self.summarize();
        Ok(())
    }
}

/// Bits of ESR.
const ERRORS: u32 = error::SEND_ILLEGAL | error::RECEIVE_ILLEGAL | error::ILLEGAL_REGISTER;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Pages;

    const BITS: u8 = 40;

    #[test]
    fn a_restored_apic_continues() {
        let pages = Pages::default();
        pages.reset(1, false);
        let mut apic = LocalApic::new(&pages);
        for (register, value) in [
            (offset::SVR, 0x1ff),
            (offset::LVT_TIMER, 0x2_0050),
            (offset::DIVIDE, 0xb),
            (offset::INITIAL_COUNT, 1000),
            (offset::TPR, 0x20),
            (offset::LDR, 0x0200_0000),
        ] {
            apic.write(register, value, 10_000);
        }
        pages.interrupt(0x41);
        pages.interrupt(0x61);
        apic.acknowledge();
        let saved = apic.save(10_400);
        let others = Pages::default();
        others.reset(1, false);
        let mut other = LocalApic::new(&others);
        other.restore(&saved, BITS, 90_400).unwrap();
        assert_eq!(other.save(90_400), saved);
        assert_eq!((other.timer_deadline(), other.register(offset::CURRENT_COUNT, 90_500)), (Some(91_000), Some(500)));
        assert_eq!(other.pending(), None, "0x61 is in service");
        other.end();
        assert_eq!(other.pending(), Some(0x41));
    }

    #[test]
    fn impossible_bases_are_refused() {
        let pages = Pages::default();
        for base in [1 << BITS, BASE_X2, 1] {
            pages.reset(0, true);
            assert!(LocalApic::new(&pages).restore(&Saved { base, ..Saved::default() }, BITS, 0).is_err(), "{base:#x}");
        }
    }

    proptest! {
        /// A hostile state is no more than one that a guest could have made: it is unchanged when saved again.
        #[test]
        fn any_state_is_reduced(words in proptest::collection::vec(any::<u32>(), 66), timer in any::<Option<u64>>(), x2 in any::<bool>()) {
            let base = 0xfee0_0000 | BASE_ENABLE | if x2 { BASE_X2 } else { 0 };
            let mut saved = Saved { base, icr_high: words[64], errors: words[65], timer, ..Saved::default() };
            saved.registers.as_flattened_mut().copy_from_slice(&words[..64]);
            let pages = Pages::default();
            pages.reset(3, false);
            let mut apic = LocalApic::new(&pages).with_least_period(10);
            apic.restore(&saved, BITS, 1000).unwrap();
            prop_assert!(apic.request().is_none_or(|vector| vector >= 16));
            let reduced = apic.save(1000);
            pages.reset(3, false);
            apic.restore(&reduced, BITS, 1000).unwrap();
            prop_assert_eq!(apic.save(1000), reduced);
            apic.expire_timer(u64::MAX);
            let _ = (apic.is_pending(), apic.acknowledge(), apic.end(), apic.take_status());
        }
    }
}
