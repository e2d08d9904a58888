//! TLB maintenance of L1 for its own translations: EL1's on this CPU, under the VM's VMID, which is loaded.

use stile_nested_arm::inject;
use stile_nested_arm::tlbi::{self, Regime};
use stile_sysreg::SysReg;

use super::state::Nested;
use crate::arch::aarch64::host::sysreg::dsb_ish;
use crate::vm::Vm;

macro_rules! tlbi {
    ($name:literal, $operand:expr) => {{
        let operand: u64 = $operand;
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again.
        unsafe { core::arch::asm!(concat!("tlbi ", $name, ", {}"), in(reg) operand, options(nostack, preserves_flags)) };
    }};
}

/// Executes a TLBI instruction that trapped at virtual EL2, on all CPUs, since the vCPU may have migrated. Returns
/// false if it is undefined.
pub fn execute(nested: &mut Nested, vm: &Vm, cpu: usize, reg: SysReg, operand: u64) -> bool {
    let Some(what) = tlbi::decode(reg, operand) else { return false };
    // L1's earlier table writes must be visible to later walks.
    // SAFETY: a barrier orders accesses, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
    // While HCR_EL2.TGE is set, EL1's instructions (op1 0) refer to L1's own translations (Arm ARM, TLBI VMALLE1), which
    // are EL1's on this CPU. Those of EL2 for EL1&0 (op1 4), such as ALLE1, do not depend on TGE.
    if what.regime == Regime::El2 || reg.op1() == 0 && inject::is_host(nested.hcr()) {
        first_stage(reg, operand);
    } else {
        nested.invalidate(vm, cpu, &what, reg, operand);
    }
    dsb_ish();
    true
}

/// Executes the instruction for EL1's translations of the VMID in VTTBR_EL2, on all CPUs. The operand has the same
/// format for both exception levels (Arm ARM, TLBI VAE1 and TLBI VAE2); ranges are treated as all addresses.
pub fn first_stage(reg: SysReg, operand: u64) {
    match (reg.crm(), reg.op2()) {
        (1 | 3 | 7, 1) => tlbi!("vae1is", operand),
        (1 | 3 | 7, 5) => tlbi!("vale1is", operand),
        (1 | 3 | 7, 2) => tlbi!("aside1is", operand),
        (1 | 3 | 7, 3) => tlbi!("vaae1is", operand),
        (1 | 3 | 7, 7) => tlbi!("vaale1is", operand),
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again.
        _ => unsafe { core::arch::asm!("tlbi vmalle1is", options(nostack, preserves_flags)) },
    }
}
