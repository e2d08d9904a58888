//! Traps from AArch32 state at EL0: exception classes 0x03 to 0x06, 0x08 and 0x0c.
//!
//! A guest of Stile has AArch32 at EL0 at most. What traps there belongs to features that the guest's
//! ID registers hide, or is the debug communications channel: an undefined instruction. (AArch64
//! code reads 0 from that channel. Linux lets EL0 have it in neither state: MDSCR_EL1.TDCC.) But a
//! processor may trap a conditional instruction whose condition fails (Arm ARM, "ISS encoding for an
//! exception from an MCR or MRC access": `CV` and `COND`), and that one is skipped.

use super::{Ec, Esr};

/// Bits of `SPSR_EL2` for an exception from AArch32 state.
mod spsr {
    pub const N_SHIFT: u32 = 31;
    pub const Z_SHIFT: u32 = 30;
    pub const C_SHIFT: u32 = 29;
    pub const V_SHIFT: u32 = 28;
    /// T32 instruction set.
    pub const T: u64 = 1 << 5;
    /// `IT[1:0]`.
    pub const IT_LOW_SHIFT: u32 = 25;
    /// `IT[7:2]`.
    pub const IT_HIGH_SHIFT: u32 = 10;
}

const ALWAYS: u8 = 0b1110;

/// Whether the instruction trapped with `esr` is a coprocessor access whose condition fails: it is
/// skipped. `spsr`: the `SPSR_EL2` of the trap.
pub const fn condition_fails(esr: Esr, spsr: u64) -> bool {
    match esr.ec() {
        Ec::CP15_MCR | Ec::CP15_MCRR | Ec::CP14_MCR | Ec::CP14_LDC | Ec::VMRS | Ec::CP14_MRRC => {}
        _ => return false,
    }
    !condition_holds(condition(esr.iss(), spsr), spsr)
}

/// The trapped instruction's condition code.
const fn condition(iss: u32, spsr: u64) -> u8 {
    const CV: u32 = 1 << 24;
    if iss & CV != 0 {
        (iss >> 20 & 0xf) as u8
    } else {
        // A T32 instruction whose condition isn't reported has that of its IT block, if any.
        match it(spsr) {
            0 => ALWAYS,
            it => it >> 4,
        }
    }
}

/// Arm ARM pseudocode, `ConditionHolds`.
const fn condition_holds(condition: u8, spsr: u64) -> bool {
    let n = spsr >> spsr::N_SHIFT & 1 != 0;
    let z = spsr >> spsr::Z_SHIFT & 1 != 0;
    let c = spsr >> spsr::C_SHIFT & 1 != 0;
    let v = spsr >> spsr::V_SHIFT & 1 != 0;
    let base = match condition >> 1 {
        0b000 => z,
        0b001 => c,
        0b010 => n,
        0b011 => v,
        0b100 => c && !z,
        0b101 => n == v,
        0b110 => n == v && !z,
        _ => return true,
    };
    base != (condition & 1 != 0)
}

/// The `IT` field; 0 outside an IT block and in A32 code.
const fn it(spsr: u64) -> u8 {
    if spsr & spsr::T == 0 {
        return 0;
    }
    (spsr >> spsr::IT_LOW_SHIFT & 3 | (spsr >> spsr::IT_HIGH_SHIFT & 0x3f) << 2) as u8
}

/// Arm ARM pseudocode, `AArch32.ITAdvance`.
pub(crate) const fn advance_it(spsr: u64) -> u64 {
    let it = it(spsr);
    if it == 0 {
        return spsr;
    }
    let next = if it & 0b111 == 0 { 0 } else { (it & 0b1110_0000 | (it << 1) & 0b1_1111) as u64 };
    spsr & !(3 << spsr::IT_LOW_SHIFT | 0x3f << spsr::IT_HIGH_SHIFT) | (next & 3) << spsr::IT_LOW_SHIFT | (next >> 2) << spsr::IT_HIGH_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: u64 = 1 << spsr::N_SHIFT;
    const Z: u64 = 1 << spsr::Z_SHIFT;
    const C: u64 = 1 << spsr::C_SHIFT;
    const V: u64 = 1 << spsr::V_SHIFT;

    fn mrc(condition: u8) -> Esr {
        Esr(0x03 << 26 | 1 << 24 | u64::from(condition) << 20)
    }

    #[test]
    fn only_coprocessor_accesses_have_a_condition() {
        /// CV, and COND 0: EQ.
        const IF_EQUAL: u64 = 1 << 24;
        for class in [0x03, 0x04, 0x05, 0x06, 0x08, 0x0c] {
            assert!(condition_fails(Esr(class << 26 | IF_EQUAL), 0));
            assert!(!condition_fails(Esr(class << 26 | IF_EQUAL), Z));
            assert!(!condition_fails(Esr(class << 26), 0), "without a condition");
        }
        assert!(!condition_fails(mrc(ALWAYS), 0));
        for class in [0x00, 0x11, 0x18] {
            assert!(!condition_fails(Esr(class << 26 | IF_EQUAL), 0));
        }
    }

    #[test]
    fn conditions() {
        // For each pair: flags for which the even condition holds, and for which the odd does.
        let cases = [(0, Z, 0), (2, C, 0), (4, N, 0), (6, V, 0), (8, C, C | Z), (10, N | V, N), (12, 0, Z)];
        for (even, holds, fails) in cases {
            assert!(condition_holds(even, holds), "{even}");
            assert!(!condition_holds(even, fails), "{even}");
            assert!(!condition_holds(even + 1, holds), "{even}");
            assert!(condition_holds(even + 1, fails), "{even}");
        }
        assert!(condition_holds(14, 0) && condition_holds(15, 0));
    }

    fn with_it(it: u8) -> u64 {
        let it = u64::from(it);
        spsr::T | (it & 3) << spsr::IT_LOW_SHIFT | (it >> 2) << spsr::IT_HIGH_SHIFT
    }

    #[test]
    fn an_it_block_gives_the_condition_and_advances() {
        let mrc_in_it_block = Esr(0x03 << 26);
        // ITTE EQ: 0b0000_0110.
        let first = with_it(0b0000_0110);
        assert!(condition_fails(mrc_in_it_block, first) && !condition_fails(mrc_in_it_block, first | Z));
        let second = with_it(0b0000_1100);
        assert_eq!(advance_it(first), second);
        let third = with_it(0b0001_1000);
        assert_eq!(advance_it(second), third);
        // The third is the "else": not equal, the last of the block.
        assert!(!condition_fails(mrc_in_it_block, third) && condition_fails(mrc_in_it_block, third | Z));
        assert_eq!(advance_it(third | Z), with_it(0) | Z);
    }

    #[test]
    fn a32_code_has_no_it_block() {
        let spsr = with_it(0b0000_0110) & !spsr::T;
        assert_eq!((it(spsr), advance_it(spsr)), (0, spsr));
        assert!(!condition_fails(Esr(0x03 << 26), spsr));
    }
}
