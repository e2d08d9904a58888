//! Calls of UEFI's runtime services (UEFI Specification, 2.3.6 AArch64 Platforms).

use core::arch::asm;

use super::host::sysreg::{isb, read_sysreg, write_sysreg};
use super::vcpu::traps;
use crate::runtime_services;

/// SCTLR_EL2.WXN: writable pages are not executable. Firmware's may be both.
const WXN: u64 = 1 << 19;

/// Sets a part of the figures. As of [`Host::set_variable`](crate::arch::contract::Host::set_variable).
pub fn set_variable(part: usize, data: &[u8]) -> Result<(), usize> {
    let services = runtime_services::get();
    traps::set_fp_traps(false);
    let (root, control) = (read_sysreg!(TTBR0_EL2), read_sysreg!(SCTLR_EL2));
    use_tables(services.root, control & !WXN);
    // SAFETY: the tables are those of the services. Interrupts are masked at EL2, floating point does not trap, and a CPU's stack has
    // 64 KiB, of which little is used. One CPU at a time calls this function.
    let result = unsafe { services.set_variable(part, data) };
    use_tables(root, control);
    result
}

/// Changes tables and SCTLR_EL2. Both tables map Stile at the same addresses.
fn use_tables(root: u64, control: u64) {
    write_sysreg!(TTBR0_EL2, root);
    write_sysreg!(SCTLR_EL2, control);
    isb();
    // Translations of the other tables, and WXN, may be held in TLBs (Arm ARM, System register fields that may be cached in a TLB).
    // SAFETY: TLBI drops cached translations only.
    unsafe { asm!("tlbi alle2", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}
