//! Load and put of a vCPU's registers. Nothing here runs at exit or entry: EL1's registers stay those of the loaded
//! vCPU while Stile runs, because EL2 does not use them.

use super::keys::Keys;
use super::registers::{self, EL1_REGISTERS};
use super::{debug, fp, serror, traps};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::nested::state::Nested;

/// Register values of a vCPU that is not loaded.
// The registers that are moved one by one come first, within reach of the offsets of LDP and STP.
#[repr(C)]
pub struct VcpuContext {
    /// ELR_EL2: program counter.
    pub pc: u64,
    /// SPSR_EL2.
    pub pstate: u64,
    /// VMPIDR_EL2.
    pub mpidr: u64,
    /// HCR_EL2.VSE: a virtual SError is pending.
    pub serror: bool,
    /// Registers of EL1 and EL0, in the order of [`registers::El1`].
    pub el1: [u64; EL1_REGISTERS],
    /// x0 to x30. While the vCPU is loaded they are in the CPU, in its frame, or here ([`Cpu::registers_at`](crate::arch::aarch64::host::cpu::Cpu::registers_at)).
    pub general: [u64; 31],
    /// Pointer-authentication keys, once the guest has used them.
    pub keys: Keys,
    /// Breakpoints and watchpoints, once the guest has used them.
    pub debug: debug::Debug,
    /// FP, SIMD and SVE registers.
    pub fp: fp::State,
    /// State of a vCPU with an EL2.
    pub nested: Option<&'static mut Nested>,
}

/// Initial SPSR_EL2: EL1h, all interrupts masked (Arm ARM, PE state on reset to AArch64 state).
const START_PSTATE: u64 = 0b1111 << 6 | 0b0101;

impl VcpuContext {
    /// Reset state, with the vCPU's entry point and argument.
    pub fn reset(&mut self, mpidr: u64, pc: u64, argument: u64) {
        self.general = [0; 31];
        self.general[0] = argument;
        self.pc = pc;
        self.pstate = START_PSTATE;
        self.mpidr = mpidr;
        self.serror = false;
        self.el1 = registers::reset_values();
        self.keys.reset();
        self.debug.reset();
        self.fp.reset();
        if let Some(nested) = &mut self.nested {
            nested.reset(mpidr);
            // L1 accesses these registers without a trap, in the page, which has the current values.
            self.debug.share();
            // L1 may change these traps for its guest, and authenticates return addresses of its own (`nested/eret.rs`).
            self.keys.share();
        }
    }

    /// Loads all registers but the general ones and the interrupt state. `switched`: another vCPU was loaded before;
    /// `waiting_traps`: WFI and WFE trap on this CPU; `fp_trapped`, `keys_trapped`: see [`fp::State::load`], [`Keys::load`].
    #[inline(always)]
    pub fn load(&mut self, switched: bool, waiting_traps: bool, fp_trapped: &mut bool, keys_trapped: &mut bool) {
        write_sysreg!(ELR_EL2, self.pc);
        write_sysreg!(SPSR_EL2, self.pstate);
        write_sysreg!(VMPIDR_EL2, self.mpidr);
        if self.serror {
            traps::inject_serror();
            if let Some(nested) = &mut self.nested {
                nested.set_own_serror();
            }
        }
        registers::load(&self.el1);
        self.keys.load(keys_trapped);
        self.debug.load();
        // Registers that L1 traps for its guest would trap here as well.
        self.fp.load(switched && self.nested.is_none(), fp_trapped);
        if let Some(nested) = &mut self.nested {
            nested.load(waiting_traps);
        }
    }

    /// Puts the registers that [`VcpuContext::load`] loaded.
    #[inline(always)]
    pub fn put(&mut self) {
        if let Some(nested) = &mut self.nested {
            nested.put();
        }
        self.pc = read_sysreg!(ELR_EL2);
        self.pstate = read_sysreg!(SPSR_EL2);
        self.serror = serror::put() | traps::take_serror();
        registers::put(&mut self.el1);
        self.keys.put();
        self.debug.put();
        self.fp.put();
    }

    /// Drops per-CPU state of a powered-off vCPU, which must not reach the next one.
    pub fn abandon(&mut self) {
        if let Some(nested) = &mut self.nested {
            nested.put();
        }
        // Its pending errors are dropped with it.
        serror::put();
        traps::take_serror();
        self.debug.put();
        self.fp.abandon();
        registers::close();
    }
}
