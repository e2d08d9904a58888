//! Vector and MMX registers of the vCPU that is loaded: they are in the CPU's registers, as Stile is built without them.

use core::arch::asm;

use stile_decode::{Extent, StateWord};

/// Runs an instruction with a register whose number is `$index`, of which the text ends `$text` and `$after` follows; `$memory` is the
/// address that it names.
macro_rules! numbered {
    ($index:expr, $memory:expr, $before:literal, $after:literal, [$($number:literal)*]) => {
        match $index {
            // SAFETY: the caller of the macro says what the instruction does: it moves one register from or to what `$memory` refers to.
            $($number => unsafe { asm!(concat!($before, $number, $after), memory = in(reg) $memory, options(nostack, preserves_flags)) },)*
            _ => {}
        }
    };
}

/// Bits 255:0 of a register, or 127:0 if not `wide`. For the others XCR0 has AVX's state.
pub fn read(index: u8, wide: bool) -> [u64; 4] {
    let mut value = [0; 4];
    let to = value.as_mut_ptr();
    if wide {
        numbered!(index, to, "vmovdqu [{memory}], ymm", "", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
    } else {
        numbered!(index, to, "movups [{memory}], xmm", "", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]);
    }
    value
}

/// Writes a register. Only with AVX's state in XCR0 may what is above bit 127 change.
pub fn write(index: u8, value: &[u64; 4], extent: Extent) {
    let from = value.as_ptr();
    match extent {
        Extent::Low => numbered!(index, from, "movups xmm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
        Extent::LowAlone => numbered!(index, from, "vmovdqu xmm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
        Extent::Wide => numbered!(index, from, "vmovdqu ymm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
    }
}

/// FSW.ES: the next instruction of the x87 or MMX tells an exception.
pub fn floating_point_error() -> bool {
    const ES: u16 = 1 << 7;
    let status: u16;
    // SAFETY: this reads the status without looking at exceptions.
    unsafe { asm!("fnstsw ax", out("ax") status, options(nomem, nostack, preserves_flags)) };
    status & ES != 0
}

/// An MMX register. No exception waits.
pub fn read_mmx(index: u8) -> u64 {
    let mut value = 0u64;
    let to = &raw mut value;
    numbered!(index, to, "movq [{memory}], mm", "", [0 1 2 3 4 5 6 7]);
    value
}

/// Writes an MMX register. No exception waits.
pub fn write_mmx(index: u8, value: u64) {
    let from = &raw const value;
    numbered!(index, from, "movq mm", ", [{memory}]", [0 1 2 3 4 5 6 7]);
}

/// A word of the x87's or SSE's state.
pub fn state_word(word: StateWord) -> u32 {
    let mut value = 0u32;
    let to = &raw mut value;
    // SAFETY: each writes 16 or 32 bits there, without looking at exceptions.
    unsafe {
        match word {
            StateWord::X87Control => asm!("fnstcw [{}]", in(reg) to, options(nostack, preserves_flags)),
            StateWord::X87Status => asm!("fnstsw [{}]", in(reg) to, options(nostack, preserves_flags)),
            StateWord::Mxcsr => asm!("stmxcsr [{}]", in(reg) to, options(nostack, preserves_flags)),
        }
    }
    value
}

/// Writes one: MXCSR without reserved bits, and no exception of the x87 waits. The status can't be written.
pub fn set_state_word(word: StateWord, value: u32) {
    let from = &raw const value;
    // SAFETY: the registers are the guest's, and Stile computes nothing with them.
    unsafe {
        match word {
            StateWord::X87Control => asm!("fldcw [{}]", in(reg) from, options(nostack, preserves_flags)),
            StateWord::Mxcsr => asm!("ldmxcsr [{}]", in(reg) from, options(nostack, preserves_flags)),
            StateWord::X87Status => {}
        }
    }
}

/// XCR0, which is the guest's. CR4.OSXSAVE is set.
pub fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: with OSXSAVE, reading is allowed.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}
