//! FP, SIMD and SVE registers. Stile does not use them, so that a vCPU's stay in the CPU until put.
//!
//! On a shared CPU they are loaded at first use, which many turns end without. A vCPU that used them gets them
//! without a trap in its next turns.

use stile_snapshot::zeros::{fill, trimmed};

use super::traps;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

/// Number of turns for which a vCPU's registers are loaded eagerly after a use.
const EAGER_TURNS: u8 = 8;

/// Maximum vector length, in bytes: 2048 bits.
const MAX_VECTOR: usize = 256;

/// Storage of a vCPU's registers.
#[repr(C, align(16))]
pub struct State {
    /// Z0 to Z31 at the CPU's vector length, or V0 to V31 in the first 512 bytes.
    z: [u8; 32 * MAX_VECTOR],
    /// P0 to P15, and FFR.
    p: [u8; 17 * MAX_VECTOR / 8],
    fpcr: u64,
    fpsr: u64,
    /// ZCR_EL1.
    zcr: u64,
    /// The registers are in the CPU.
    live: bool,
    eager_turns: u8,
}

impl State {
    /// All zero.
    pub fn reset(&mut self) {
        self.z.fill(0);
        self.p.fill(0);
        self.fpcr = 0;
        self.fpsr = 0;
        self.zcr = 0;
        self.live = false;
        self.eager_turns = 0;
    }

    /// Loads the registers, or on a shared CPU possibly leaves them for later. `trapped`: whether they trap on this
    /// CPU.
    #[inline(always)]
    pub fn load(&mut self, switched: bool, trapped: &mut bool) {
        let later = switched && self.eager_turns == 0;
        if *trapped != later {
            set_traps(later, trapped);
        }
        if !later {
            self.eager_turns = self.eager_turns.saturating_sub(1);
            self.fetch();
        }
    }

    /// Handles a trapped access by the loaded vCPU, which then retries. Returns false if the registers were loaded
    /// already.
    pub fn grant(&mut self, trapped: &mut bool) -> bool {
        if self.live {
            return false;
        }
        set_traps(false, trapped);
        self.eager_turns = EAGER_TURNS;
        self.fetch();
        true
    }

    /// Puts the registers.
    pub fn put(&mut self) {
        if self.live {
            self.save();
        }
        self.live = false;
    }

    /// Drops the registers of a powered-off vCPU.
    pub fn abandon(&mut self) {
        self.live = false;
    }

    /// Exports the registers of a vCPU that is not loaded: FPCR, FPSR, ZCR_EL1, vectors, and predicates, both without
    /// trailing zeros.
    pub fn saved(&self) -> (u64, u64, u64, &[u8], &[u8]) {
        (self.fpcr, self.fpsr, self.zcr, trimmed(&self.z), trimmed(&self.p))
    }

    /// Imports what [`saved`](Self::saved) returns, on a CPU with the same vector length. The guest could have written
    /// any values. Returns false if there are too many bytes.
    pub fn restore(&mut self, (fpcr, fpsr, zcr, z, p): (u64, u64, u64, &[u8], &[u8])) -> bool {
        (self.fpcr, self.fpsr, self.zcr) = (fpcr, fpsr, zcr);
        fill(&mut self.z, z) && fill(&mut self.p, p)
    }

    /// Whether the registers are in the CPU.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Loads the registers from memory.
    #[inline(never)]
    pub fn fetch(&mut self) {
        self.live = true;
        let have = features::get();
        if have.sve {
            // SAFETY: `z` and `p` have room for the maximum vector length, and Rust code does not use these
            // registers.
            unsafe { load_sve(self.z.as_ptr(), self.p.as_ptr()) };
            if have.vhe {
                write_sysreg!(ZCR_EL12, self.zcr);
            } else {
                write_sysreg!(ZCR_EL1, self.zcr);
            }
        } else {
            // SAFETY: `z` has room for 32 registers of 16 bytes, and Rust code does not use these registers.
            unsafe { load_simd(self.z.as_ptr()) };
        }
        write_sysreg!(FPCR, self.fpcr);
        write_sysreg!(FPSR, self.fpsr);
    }

    /// Stores the registers to memory.
    pub fn save(&mut self) {
        self.fpcr = read_sysreg!(FPCR);
        self.fpsr = read_sysreg!(FPSR);
        let have = features::get();
        if have.sve {
            self.zcr = if have.vhe { read_sysreg!(ZCR_EL12) } else { read_sysreg!(ZCR_EL1) };
            // SAFETY: the arrays have room for the maximum vector length, and the registers do not trap.
            unsafe { save_sve(self.z.as_mut_ptr(), self.p.as_mut_ptr()) };
        } else {
            // SAFETY: the array has room for 32 registers of 16 bytes, and they do not trap.
            unsafe { save_simd(self.z.as_mut_ptr()) };
        }
    }
}

#[inline(never)]
fn set_traps(on: bool, trapped: &mut bool) {
    traps::set_fp_traps(on);
    *trapped = on;
    // The trap applies to EL2 as well.
    isb();
}

unsafe extern "C" {
    fn load_simd(z: *const u8);
    fn save_simd(z: *mut u8);
    fn load_sve(z: *const u8, p: *const u8);
    fn save_sve(z: *mut u8, p: *mut u8);
}

core::arch::global_asm!(
    r#"
.arch_extension fp
.arch_extension simd
.global save_simd
save_simd:
    stp q0, q1, [x0, #0]
    stp q2, q3, [x0, #32]
    stp q4, q5, [x0, #64]
    stp q6, q7, [x0, #96]
    stp q8, q9, [x0, #128]
    stp q10, q11, [x0, #160]
    stp q12, q13, [x0, #192]
    stp q14, q15, [x0, #224]
    stp q16, q17, [x0, #256]
    stp q18, q19, [x0, #288]
    stp q20, q21, [x0, #320]
    stp q22, q23, [x0, #352]
    stp q24, q25, [x0, #384]
    stp q26, q27, [x0, #416]
    stp q28, q29, [x0, #448]
    stp q30, q31, [x0, #480]
    ret
.global load_simd
load_simd:
    ldp q0, q1, [x0, #0]
    ldp q2, q3, [x0, #32]
    ldp q4, q5, [x0, #64]
    ldp q6, q7, [x0, #96]
    ldp q8, q9, [x0, #128]
    ldp q10, q11, [x0, #160]
    ldp q12, q13, [x0, #192]
    ldp q14, q15, [x0, #224]
    ldp q16, q17, [x0, #256]
    ldp q18, q19, [x0, #288]
    ldp q20, q21, [x0, #320]
    ldp q22, q23, [x0, #352]
    ldp q24, q25, [x0, #384]
    ldp q26, q27, [x0, #416]
    ldp q28, q29, [x0, #448]
    ldp q30, q31, [x0, #480]
    ret
.arch_extension sve
.macro sve_z op
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    \op z\n, [x0, #\n, mul vl]
.endr
.endm
.macro sve_p op
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    \op p\n, [x1, #\n, mul vl]
.endr
.endm
.global save_sve
save_sve:
    sve_z str
    sve_p str
    rdffr p0.b
    str p0, [x1, #16, mul vl]
    ldr p0, [x1, #0, mul vl]
    ret
.global load_sve
load_sve:
    sve_z ldr
    ldr p0, [x1, #16, mul vl]
    wrffr p0.b
    sve_p ldr
    ret
.arch_extension nosve
.arch_extension nosimd
.arch_extension nofp
"#
);
