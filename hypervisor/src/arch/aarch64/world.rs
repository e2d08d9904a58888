//! Load and put: a vCPU's state going onto a CPU and coming off it. Nothing here runs at exit or entry.
//!
//! EL1's registers belong to the vCPU that is loaded, also while Stile runs: EL2 never uses them.

use super::registers::{self, EL1_REGISTERS, KEYS};
use super::sysreg::{read_sysreg, write_sysreg};
use super::{debug, features, fp, traps};

/// The values of a vCPU's registers while it is not loaded.
#[repr(C)]
pub struct World {
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
}

/// SPSR_EL2 of a vCPU that starts: EL1h, all interrupts masked (Arm ARM, PE state on reset to AArch64 state).
const START_PSTATE: u64 = 0b1111 << 6 | 0b0101;

impl World {
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
    }

    /// Puts everything but the general registers and the interrupt controller's state onto this CPU.
    pub fn load(&mut self) {
        write_sysreg!("elr_el2", self.pc);
        write_sysreg!("spsr_el2", self.pstate);
        write_sysreg!("vmpidr_el2", self.mpidr);
        let have = features::get();
        if have.ras {
            // VDISR_EL2: the guest, which is told that there is no RAS, can reach it as DISR_EL1 all the same.
            write_sysreg!("S3_4_C12_C1_1", 0);
        }
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
        self.fp.load();
    }

    /// The reverse of [`World::load`].
    pub fn put(&mut self) {
        self.pc = read_sysreg!("elr_el2");
        self.pstate = read_sysreg!("spsr_el2");
        self.serror = traps::take_serror();
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
}
