//! Address translation instructions of L1: executed by the CPU for its own translations, emulated by crate
//! `stile-nested-arm` for its guest's.

use stile_nested_arm::at::{self, Regime, Stage1};
use stile_nested_arm::forward::Level;
use stile_nested_arm::inject;
use stile_sysreg::SysReg;

use super::shadow::Memory;
use super::state::Nested;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::vm::Vm;

macro_rules! at {
    ($name:literal, $address:expr) => {{
        let address: u64 = $address;
        // SAFETY: AT writes PAR_EL1 only, which belongs to the guest.
        unsafe { core::arch::asm!(concat!("at ", $name, ", {}"), in(reg) address, options(nostack, preserves_flags)) };
    }};
}

/// Result of [`execute`].
pub enum Executed {
    /// PAR_EL1, which is the vCPU's own, has the result.
    Done,
    /// The walk reached RAM that is being filled: L1 executes the instruction again.
    Incomplete,
    /// Undefined instruction.
    Unknown,
}

/// Executes AT at virtual EL2.
pub fn execute(nested: &Nested, vm: &Vm, reg: SysReg, address: u64) -> Executed {
    /// SPSR_EL2.PAN.
    const PAN: u64 = 1 << 22;
    let Some(what) = at::decode(reg) else { return Executed::Unknown };
    let is_own = what.regime == Regime::El2 || what.regime == Regime::Stage1 && inject::is_host(nested.hcr());
    if !is_own {
        let pan = read_sysreg!(SPSR_EL2) & PAN != 0;
        let (stage1, stage2) = (Stage1::of_guest(&nested.page, nested.hcr()), nested.stage2(vm));
        let memory = Memory::new(vm);
        let par = at::translate(what, &stage1, &stage2, &memory, address, pan);
        if memory.is_incomplete() {
            return Executed::Incomplete;
        }
        write_sysreg!(PAR_EL1, par);
        return Executed::Done;
    }
    // Virtual EL2's translations are EL1's on this CPU.
    match (what.level, what.write) {
        (Level::El0, false) => at!("s1e0r", address),
        (Level::El0, true) => at!("s1e0w", address),
        (_, false) => at!("s1e1r", address),
        (_, true) => at!("s1e1w", address),
    }
    isb();
    Executed::Done
}
