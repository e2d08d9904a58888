//! PSTATE of a vCPU, as SPSR_EL2 has it (Arm ARM, SPSR_EL2, Saved Program Status Register).

/// M\[4\]: the AArch32 state.
const AARCH32: u64 = 1 << 4;
/// M\[3:0\]: EL0t (AArch32: User), EL1t and EL1h.
const MODE: u64 = 0xf;
const EL0: u64 = 0b0000;
const EL1T: u64 = 0b0100;
const EL1H: u64 = 0b0101;

/// Fields in AArch64 state: N, Z, C, V, TCO, DIT, UAO, PAN, SS, IL, ALLINT, SSBS, BTYPE, D, A, I, F.
const FIELDS: u64 = 0xf << 28 | 0x3f << 20 | 1 << 13 | 1 << 12 | 0b11 << 10 | 0xf << 6;
/// Fields in AArch32 state: N, Z, C, V, Q, IT, DIT, SSBS, PAN, SS, IL, GE, E, A, I, F, T.
const FIELDS32: u64 = 0xffff_ffe0;

/// Reduces a PSTATE to its fields. `None` if a vCPU can't be in it: an exception return there would be illegal and stay
/// at EL2, or reach EL2. `el0_32`: whether EL0 supports AArch32 (ID_AA64PFR0_EL1.EL0).
pub const fn allowed(pstate: u64, el0_32: bool) -> Option<u64> {
    let mode = pstate & MODE;
    match pstate & AARCH32 {
        0 if mode == EL0 || mode == EL1T || mode == EL1H => Some(pstate & FIELDS | mode),
        AARCH32 if mode == EL0 && el0_32 => Some(pstate & FIELDS32 | AARCH32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modes_of_el0_and_el1_are_allowed() {
        for mode in 0..32 {
            for el0_32 in [false, true] {
                let expected = matches!(mode, 0 | 4 | 5) || mode == 16 && el0_32;
                for fields in [0, !0x1f, 0xf000_03c0] {
                    let pstate = allowed(fields | mode, el0_32);
                    assert_eq!(pstate.is_some(), expected, "{mode:#b}");
                    assert!(pstate.is_none_or(|pstate| pstate & 0x1f == mode && pstate >> 32 == 0));
                }
            }
        }
        // Linux at EL1 with interrupts masked, and in user space.
        assert_eq!(allowed(0x6040_03c5, true), Some(0x6040_03c5));
        assert_eq!(allowed(0x8000_1000, false), Some(0x8000_1000));
    }
}
