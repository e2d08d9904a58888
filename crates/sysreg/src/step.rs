//! `SPSR_EL2` after a trapped instruction was executed in the guest's place.

use crate::syndrome::aarch32;

/// AArch32 state: `M[4]`.
const AARCH32: u64 = 1 << 4;
/// Software step: the stepped instruction has not executed yet.
const SS: u64 = 1 << 21;

/// Whether it changes, or may change.
#[inline(always)]
pub const fn changes_pstate(spsr: u64) -> bool {
    spsr & (AARCH32 | SS) != 0
}

/// Returns `SPSR_EL2` after the instruction (Arm ARM, "Software Step exceptions", and the pseudocode `AArch32.ITAdvance`).
pub const fn after_instruction(spsr: u64) -> u64 {
    let stepped = spsr & !SS;
    if spsr & AARCH32 != 0 { aarch32::advance_it(stepped) } else { stepped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_or_aarch32_changes_it() {
        let el1h = 0x6000_03c5;
        assert!(!changes_pstate(el1h));
        assert_eq!(after_instruction(el1h), el1h);
        assert!(changes_pstate(el1h | SS));
        assert_eq!(after_instruction(el1h | SS), el1h);
    }

    #[test]
    fn an_it_block_goes_on_to_its_next_condition() {
        const T32: u64 = AARCH32 | 1 << 5;
        // IT[7:0] = 0b0000_1100: EQ, two instructions; IT[7:2] is bits 15 to 10.
        let first = T32 | 0b000_011 << 10;
        assert!(changes_pstate(first));
        assert_eq!(after_instruction(first), T32 | 0b000_110 << 10);
        assert_eq!(after_instruction(after_instruction(first)), T32);
    }
}
