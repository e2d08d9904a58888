//! TLB maintenance of L1 at virtual EL2, for its own translations: those are EL1's on this CPU, under the VM's VMID, which is current.

use stile_nested::inject;
use stile_nested::tlbi::{self, Regime};
use stile_sysreg::SysReg;

use super::state::Nested;
use crate::arch::aarch64::host::sysreg::dsb_ish;
use crate::vm::Vm;

macro_rules! tlbi {
    ($name:literal, $operand:expr) => {{
        let operand: u64 = $operand;
        // SAFETY: forgetting translations is always right.
        unsafe { core::arch::asm!(concat!("tlbi ", $name, ", {}"), in(reg) operand, options(nostack, preserves_flags)) };
    }};
}

/// A TLBI instruction that trapped at virtual EL2. It acts on all CPUs: the vCPU may have been on another one. False if there is no
/// such instruction.
pub fn execute(nested: &mut Nested, vm: &Vm, cpu: usize, reg: SysReg, operand: u64) -> bool {
    let Some(what) = tlbi::decode(reg, operand) else { return false };
    // The tables that L1 wrote before must be seen by walks that come after.
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
    // EL1's instructions mean its own translations while HCR_EL2.TGE is set (Arm ARM, TLBI VMALLE1), and those are EL1's on this CPU.
    if what.regime == Regime::El2 || inject::is_host(nested.hcr()) {
        first_stage(reg, operand);
    } else {
        nested.invalidate(vm, cpu, &what, reg, operand);
    }
    dsb_ish();
    true
}

/// The instruction, for EL1's translations of the VMID that is in VTTBR_EL2, on all CPUs. The operand's fields are the same for both
/// exception levels (Arm ARM, TLBI VAE1 and TLBI VAE2); ranges are taken for all.
pub fn first_stage(reg: SysReg, operand: u64) {
    match (reg.crm(), reg.op2()) {
        (1 | 3 | 7, 1) => tlbi!("vae1is", operand),
        (1 | 3 | 7, 5) => tlbi!("vale1is", operand),
        (1 | 3 | 7, 2) => tlbi!("aside1is", operand),
        (1 | 3 | 7, 3) => tlbi!("vaae1is", operand),
        (1 | 3 | 7, 7) => tlbi!("vaale1is", operand),
        // SAFETY: forgetting translations is always right.
        _ => unsafe { core::arch::asm!("tlbi vmalle1is", options(nostack, preserves_flags)) },
    }
}
