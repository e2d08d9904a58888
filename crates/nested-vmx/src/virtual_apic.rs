//! L2's virtual APIC (SDM, "APIC Virtualization and Virtual Interrupts"): the processor's, on a page of L1's memory.

use crate::controls::{primary, secondary};
use crate::field::Field;
use crate::vmcs12::Vmcs12;

/// Offset of VTPR in the virtual-APIC page.
pub const TPR: u64 = 0x80;

/// Words of an MSR bitmap with x2APIC registers that the processor can virtualize: reads, and the word of writes.
pub const X2APIC_WORDS: [usize; 5] = [32, 33, 34, 35, 256 + 32];

/// Values of [`X2APIC_WORDS`] that let L2 reach the registers which the processor virtualizes with these secondary controls ("Virtualizing
/// MSR-Based APIC Accesses"). A bit that is set exits: without the control, the access would reach the machine's APIC.
pub const fn x2apic_words(secondary: u32) -> [u64; X2APIC_WORDS.len()] {
    const TPR: u64 = 1 << 0x08;
    const EOI_AND_SELF_IPI: u64 = 1 << 0x0b | 1 << 0x3f;
    const ALL: u64 = u64::MAX;
    if secondary & secondary::X2APIC_MODE == 0 {
        return [ALL; X2APIC_WORDS.len()];
    }
    let written = if secondary & secondary::INTERRUPT_DELIVERY != 0 { TPR | EOI_AND_SELF_IPI } else { TPR };
    // Every register is read in the page.
    if secondary & secondary::APIC_REGISTERS != 0 { [0, 0, 0, 0, !written] } else { [!TPR, ALL, ALL, ALL, !written] }
}

/// Whether an entry exits at once, because L2's VTPR is below the threshold ("VM Exits Induced by the TPR Threshold"). `read` reads L1's
/// memory.
pub fn is_below_threshold(vmcs: &Vmcs12, read: impl FnOnce(u64) -> Option<u64>) -> bool {
    const DECIDING: u32 = secondary::APIC_ACCESSES | secondary::INTERRUPT_DELIVERY;
    let has_shadow = vmcs.get32(Field::PRIMARY_CONTROLS) & primary::TPR_SHADOW != 0;
    let is_checked = has_shadow && vmcs.secondary() & DECIDING == secondary::APIC_ACCESSES;
    is_checked && read(vmcs.get(Field::VIRTUAL_APIC) | TPR).is_some_and(|tpr| vmcs.get(Field::TPR_THRESHOLD) > tpr >> 4 & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intercepts::msr_bit;

    /// Whether a read and a write of an MSR exit.
    fn exits(secondary: u32, msr: u32) -> [bool; 2] {
        [false, true].map(|is_write| {
            let (word, bit) = msr_bit(msr, is_write).expect("a bit");
            let at = X2APIC_WORDS.iter().position(|&listed| listed == word);
            at.is_none_or(|at| x2apic_words(secondary)[at] >> bit & 1 != 0)
        })
    }

    #[test]
    fn only_virtualized_registers_are_reached() {
        for msr in 0x800..0x900 {
            assert_eq!(exits(secondary::APIC_ACCESSES, msr), [true, true], "{msr:#x}");
            assert_eq!(exits(secondary::X2APIC_MODE, msr), [msr != 0x808, msr != 0x808], "{msr:#x}");
            let registers = secondary::X2APIC_MODE | secondary::APIC_REGISTERS;
            assert_eq!(exits(registers, msr), [false, msr != 0x808], "{msr:#x}");
            let delivery = secondary::X2APIC_MODE | secondary::INTERRUPT_DELIVERY;
            assert_eq!(exits(delivery, msr), [msr != 0x808, ![0x808, 0x80b, 0x83f].contains(&msr)], "{msr:#x}");
        }
    }

    #[test]
    fn the_threshold_counts_with_apic_accesses_and_the_shadow() {
        let mut vmcs = Vmcs12::new();
        vmcs.set(Field::VIRTUAL_APIC, 0x5000);
        vmcs.set(Field::TPR_THRESHOLD, 4);
        vmcs.set(Field::PRIMARY_CONTROLS, u64::from(primary::TPR_SHADOW | primary::SECONDARY));
        let read = |tpr: u64| move |address| (address == 0x5080).then_some(0xffff_ff00 | tpr);
        assert!(!is_below_threshold(&vmcs, read(0x30)));
        vmcs.set(Field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES.into());
        assert!(is_below_threshold(&vmcs, read(0x3f)));
        assert!(!is_below_threshold(&vmcs, read(0x40)));
        vmcs.set(Field::SECONDARY_CONTROLS, u64::from(secondary::APIC_ACCESSES | secondary::INTERRUPT_DELIVERY));
        assert!(!is_below_threshold(&vmcs, read(0x3f)));
        vmcs.set(Field::SECONDARY_CONTROLS, secondary::APIC_ACCESSES.into());
        vmcs.set(Field::PRIMARY_CONTROLS, primary::SECONDARY.into());
        assert!(!is_below_threshold(&vmcs, read(0x30)));
    }
}
