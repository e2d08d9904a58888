//! Vector and MMX registers of the loaded vCPU: they are in the CPU, because Stile is compiled without them.

use core::arch::asm;

use stile_x86_decode::{Extent, StateWord};

/// Executes an instruction on register `$index`, whose text is `$text`, the number, then `$after`; `$memory` is its
/// memory operand.
macro_rules! numbered {
    ($index:expr, $memory:expr, $before:literal, $after:literal, [$($number:literal)*]) => {
        match $index {
            // SAFETY: each use of the macro moves one register from or to the referent of `$memory`.
            $($number => unsafe { asm!(concat!($before, $number, $after), memory = in(reg) $memory, options(nostack, preserves_flags)) },)*
            _ => {}
        }
    };
}

/// Reads bits 255:0 of a register, or 127:0 if not `wide`. Bits 255:128 require AVX state in XCR0.
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

/// Writes a register. Bits above 127 change only with AVX state in XCR0.
pub fn write(index: u8, value: &[u64; 4], extent: Extent) {
    let from = value.as_ptr();
    match extent {
        Extent::Low => numbered!(index, from, "movups xmm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
        Extent::LowAlone => numbered!(index, from, "vmovdqu xmm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
        Extent::Wide => numbered!(index, from, "vmovdqu ymm", ", [{memory}]", [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
    }
}

/// FSW.ES: the next x87 or MMX instruction raises an exception.
pub fn floating_point_error() -> bool {
    const ES: u16 = 1 << 7;
    let status: u16;
    // SAFETY: it reads the status word without checking for exceptions.
    unsafe { asm!("fnstsw ax", out("ax") status, options(nomem, nostack, preserves_flags)) };
    status & ES != 0
}

/// Reads an MMX register. No exception is pending.
pub fn read_mmx(index: u8) -> u64 {
    let mut value = 0u64;
    let to = &raw mut value;
    numbered!(index, to, "movq [{memory}], mm", "", [0 1 2 3 4 5 6 7]);
    value
}

/// Writes an MMX register. No exception is pending.
pub fn write_mmx(index: u8, value: u64) {
    let from = &raw const value;
    numbered!(index, from, "movq mm", ", [{memory}]", [0 1 2 3 4 5 6 7]);
}

/// Reads a control or status word of x87 or SSE.
pub fn state_word(word: StateWord) -> u32 {
    let mut value = 0u32;
    let to = &raw mut value;
    // SAFETY: each stores 16 or 32 bits there, without checking for exceptions.
    unsafe {
        match word {
            StateWord::X87Control => asm!("fnstcw [{}]", in(reg) to, options(nostack, preserves_flags)),
            StateWord::X87Status => asm!("fnstsw [{}]", in(reg) to, options(nostack, preserves_flags)),
            StateWord::Mxcsr => asm!("stmxcsr [{}]", in(reg) to, options(nostack, preserves_flags)),
        }
    }
    value
}

/// Writes a control word: MXCSR without reserved bits, and no x87 exception is pending. The status word cannot be
/// written.
pub fn set_state_word(word: StateWord, value: u32) {
    let from = &raw const value;
    // SAFETY: the registers hold guest state, and Stile does not use them.
    unsafe {
        match word {
            StateWord::X87Control => asm!("fldcw [{}]", in(reg) from, options(nostack, preserves_flags)),
            StateWord::Mxcsr => asm!("ldmxcsr [{}]", in(reg) from, options(nostack, preserves_flags)),
            StateWord::X87Status => {}
        }
    }
}

/// Reads XCR0, which holds the guest's value. CR4.OSXSAVE is set.
pub fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: XGETBV requires CR4.OSXSAVE, which boot set, and changes no memory.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}
