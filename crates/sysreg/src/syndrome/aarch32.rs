//! Traps from AArch32 state at EL0: exception classes 0x03 to 0x06, 0x08 and 0x0c.
//!
//! A guest of Stile has AArch32 at EL0 at most. What such a program may access directly is never
//! trapped, so every access that is trapped and does execute is answered with an undefined
//! instruction. But a processor may trap a conditional instruction whose condition fails (Arm ARM,
//! "ISS encoding for an exception from an MCR or MRC access": `CV` and `COND`), and that one is to
//! be skipped.

use super::{Ec, Esr};

/// How a trapped coprocessor access is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With an undefined instruction exception at EL1.
    Undefined,
    /// The instruction doesn't execute: the program continues behind it, with this `SPSR_EL2`.
    Skip(u64),
}

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

/// The answer to a coprocessor access trapped with `esr`, from the `SPSR_EL2` of the trap. `None`
/// if the class is another.
pub const fn answer(esr: Esr, spsr: u64) -> Option<Answer> {
    match esr.ec() {
        Ec::CP15_MCR | Ec::CP15_MCRR | Ec::CP14_MCR | Ec::CP14_LDC | Ec::VMRS | Ec::CP14_MRRC => {}
        _ => return None,
    }
    Some(if condition_holds(condition(esr.iss(), spsr), spsr) { Answer::Undefined } else { Answer::Skip(advance_it(spsr)) })
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
    fn what_executes_is_undefined() {
        assert_eq!(answer(mrc(ALWAYS), 0), Some(Answer::Undefined));
        for class in [0x03, 0x04, 0x05, 0x06, 0x08, 0x0c] {
            assert_eq!(answer(Esr(class << 26), 0), Some(Answer::Undefined));
        }
        assert_eq!(answer(Esr(0x18 << 26), 0), None);
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

    #[test]
    fn a_failed_condition_is_skipped() {
        let equal = 0;
        assert_eq!(answer(mrc(equal), 0), Some(Answer::Skip(0)));
        assert_eq!(answer(mrc(equal), Z), Some(Answer::Undefined));
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
        assert_eq!(answer(mrc_in_it_block, first | Z), Some(Answer::Undefined));
        let second = with_it(0b0000_1100);
        assert_eq!(answer(mrc_in_it_block, first), Some(Answer::Skip(second)));
        let third = with_it(0b0001_1000);
        assert_eq!(answer(mrc_in_it_block, second), Some(Answer::Skip(third)));
        // The third is the "else": not equal, the last of the block.
        assert_eq!(answer(mrc_in_it_block, third), Some(Answer::Undefined));
        let after = with_it(0);
        let skipped = Some(Answer::Skip(after | Z));
        assert_eq!(answer(mrc_in_it_block, third | Z), skipped);
    }

    #[test]
    fn a32_code_has_no_it_block() {
        let spsr = with_it(0b0000_0110) & !spsr::T;
        assert_eq!(it(spsr), 0);
        assert_eq!(answer(Esr(0x03 << 26), spsr), Some(Answer::Undefined));
    }
}
