//! Load and put: a vCPU's state going onto a CPU and coming off it. Nothing here runs at exit or entry.
//!
//! EL1's registers belong to the vCPU that is loaded, also while Stile runs: EL2 never uses them.

use super::registers::{self, EL1_REGISTERS, KEYS};
use super::{debug, fp, serror, traps};
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::nested::state::Nested;

/// The values of a vCPU's registers while it is not loaded.
#[repr(C)]
pub struct VcpuContext {
    /// x0 to x30. While the vCPU is loaded they are in the guest or in the CPU's frame.
    pub general: [u64; 31],
    /// ELR_EL2: where the vCPU goes on.
    pub pc: u64,
    /// SPSR_EL2.
    pub pstate: u64,
    /// VMPIDR_EL2.
    pub mpidr: u64,
    /// A virtual SError is pending (HCR_EL2.VSE).
    pub serror: bool,
    /// EL1's and EL0's registers, in the order of [`registers::El1`].
    pub el1: [u64; EL1_REGISTERS],
    /// Pointer-authentication keys.
    pub keys: [u64; KEYS],
    /// Breakpoints and watchpoints, once the guest has used them.
    pub debug: debug::Debug,
    /// FP, SIMD and SVE registers.
    pub fp: fp::State,
    /// State of a vCPU that has an EL2 of its own.
    pub nested: Option<&'static mut Nested>,
}

/// SPSR_EL2 of a vCPU that starts: EL1h, all interrupts masked (Arm ARM, PE state on reset to AArch64 state).
const START_PSTATE: u64 = 0b1111 << 6 | 0b0101;

impl VcpuContext {
    /// The state after reset, with the vCPU's first instruction and argument.
    pub fn reset(&mut self, mpidr: u64, pc: u64, argument: u64) {
        self.general = [0; 31];
        self.general[0] = argument;
        self.pc = pc;
        self.pstate = START_PSTATE;
        self.mpidr = mpidr;
        self.serror = false;
        self.el1 = registers::reset_values();
        self.keys = [0; KEYS];
        self.debug.reset();
        self.fp.reset();
        if let Some(nested) = &mut self.nested {
            nested.reset(mpidr);
            // L1 has these registers without a trap: what holds is in the page.
            self.debug.share();
        }
    }

    /// Puts everything but the general registers and the interrupt controller's state onto this CPU. `turns`: another vCPU had it before;
    /// `fp_trapped`: see [`fp::State::load`].
    pub fn load(&mut self, switched: bool, fp_trapped: &mut bool) {
        write_sysreg!(ELR_EL2, self.pc);
        write_sysreg!(SPSR_EL2, self.pstate);
        write_sysreg!(VMPIDR_EL2, self.mpidr);
        let have = features::get();
        if self.serror {
            traps::inject_serror();
        }
        if have.vhe {
            registers::load::<true>(&self.el1);
        } else {
            registers::load::<false>(&self.el1);
        }
        if have.pauth {
            registers::load_keys(&self.keys);
        }
        self.debug.load();
        // Registers that L1 has trapped for its guest would trap here, too.
        self.fp.load(switched && self.nested.is_none(), fp_trapped);
        if let Some(nested) = &mut self.nested {
            nested.load();
        }
    }

    /// Undoes [`VcpuContext::load`].
    pub fn put(&mut self) {
        if let Some(nested) = &mut self.nested {
            nested.put();
        }
        self.pc = read_sysreg!(ELR_EL2);
        self.pstate = read_sysreg!(SPSR_EL2);
        self.serror = serror::put() | traps::take_serror();
        let have = features::get();
        if have.vhe {
            registers::save::<true>(&mut self.el1);
        } else {
            registers::save::<false>(&mut self.el1);
        }
        if have.pauth {
            registers::save_keys(&mut self.keys);
        }
        self.debug.put();
        self.fp.put();
    }

    /// Takes from this CPU what must not meet the next vCPU, of one whose registers are worth nothing any more.
    pub fn abandon(&mut self) {
        if let Some(nested) = &mut self.nested {
            nested.put();
        }
        // Its errors end with it.
        serror::put();
        traps::take_serror();
        self.debug.put();
        self.fp.abandon();
    }
}

/// Copies x0 to x30.
pub fn copy_general_registers(from: &[u64; 31], to: &mut [u64; 31]) {
    // SAFETY: 31 words are read and written, as the types say.
    unsafe { move_31(from, to) };
}

unsafe extern "C" {
    fn move_31(from: *const [u64; 31], to: *mut [u64; 31]);
}

// In assembly: the compiler would make a loop of it, because it must not use vector registers.
core::arch::global_asm!(
    ".macro move_pairs a",
    "    ldp x2, x3, [x0, #\\a]",
    "    ldp x4, x5, [x0, #\\a + 16]",
    "    ldp x6, x7, [x0, #\\a + 32]",
    "    ldp x8, x9, [x0, #\\a + 48]",
    "    ldp x10, x11, [x0, #\\a + 64]",
    "    stp x2, x3, [x1, #\\a]",
    "    stp x4, x5, [x1, #\\a + 16]",
    "    stp x6, x7, [x1, #\\a + 32]",
    "    stp x8, x9, [x1, #\\a + 48]",
    "    stp x10, x11, [x1, #\\a + 64]",
    ".endm",
    ".global move_31",
    "move_31:",
    "    move_pairs 0",
    "    move_pairs 80",
    "    move_pairs 160",
    "    ldr x2, [x0, #240]",
    "    str x2, [x1, #240]",
    "    ret",
);
