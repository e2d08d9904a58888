//! Running instructions on memory and on a device, with all registers that they may see or change.

use core::arch::asm;

pc::assembly!("device/run.s");

/// The registers of `run.s`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub flags: u64,
    /// Set by `run`.
    pub code: u64,
    /// Nonzero if `vector` is all of YMM1, zero if it is XMM1.
    pub wide: u64,
    /// XMM1, or YMM1.
    pub vector: [u64; 4],
    pub mmx: u64,
}

unsafe extern "C" {
    fn run_with_registers(block: *mut Block);
    /// Runs code on another stack, which ends at `stack`. Returns the code's RAX.
    pub fn run_on_stack(code: u64, stack: u64) -> u64;
}

impl Block {
    /// Pairwise different values, with all status flags clear.
    pub const fn new() -> Block {
        Block {
            rax: 0x8877_6655_4433_2211,
            rbx: 0x1020_3040_5060_7080,
            rcx: 0x0f0e_0d0c_0b0a_0903,
            rdx: 0x0000_0000_0000_0001,
            rsi: 0,
            rdi: 0,
            r8: 0xfedc_ba98_7654_3210,
            flags: 2,
            code: 0,
            wide: 0,
            vector: [0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00, 0x5566_7788_99aa_bbcc],
            mmx: 0xa5a5_5a5a_c3c3_3c3c,
        }
    }

    /// Runs the code at an address.
    pub fn run(&mut self, code: u64, wide: bool) {
        self.code = code;
        self.wide = wide.into();
        // SAFETY: the code is one of the tests', which satisfies the requirements of `run.s`.
        unsafe { run_with_registers(self) };
    }
}

/// Enables SSE and, if supported, AVX. Returns whether AVX is supported.
pub fn turn_vectors_on() -> bool {
    let leaf = core::arch::x86_64::__cpuid_count(1, 0);
    let avx = leaf.ecx & 1 << 28 != 0 && leaf.ecx & 1 << 26 != 0;
    // SAFETY: only these tests use vector registers, which OSFXSR, OSXSAVE and XCR0 control; the CPU supports
    // the enabled features.
    unsafe {
        asm!("mov {0}, cr4", "or {0}, {1}", "mov cr4, {0}", out(reg) _, in(reg) 1u64 << 9 | u64::from(avx) << 18, options(nostack));
        if avx {
            asm!("xsetbv", in("ecx") 0, in("eax") 7, in("edx") 0, options(nostack));
        }
    }
    avx
}
