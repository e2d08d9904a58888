//! Calls of UEFI's runtime services (UEFI Specification, 2.3.4 x64 Platforms).

use core::arch::asm;
use core::sync::atomic::Ordering;

use super::host::idt;
use super::host::instructions::read_cr;
use crate::runtime_services;

/// MXCSR with all exceptions masked, as UEFI requires.
const MXCSR: u32 = 0x1f80;

/// Sets a part of the figures. As of [`Host::set_variable`](crate::arch::contract::Host::set_variable).
pub fn set_variable(part: usize, data: &[u8]) -> Result<(), usize> {
    let services = runtime_services::get();
    // Firmware may need system management interrupts, which the global interrupt flag holds back.
    let has_global_flag = idt::GLOBAL_FLAG.load(Ordering::Relaxed);
    if has_global_flag {
        // SAFETY: EFER.SVME is set. Interrupts are masked, now by another flag.
        unsafe { asm!("cli", "stgi", options(nostack)) };
    }
    // SAFETY: guests' floating-point state is not needed any more, and CR4.OSFXSR is set.
    unsafe { asm!("fninit", "ldmxcsr [{}]", in(reg) &MXCSR, options(nostack)) };
    let own = read_cr!("cr3");
    use_tables(services.root);
    // SAFETY: the tables are those of the services. Interrupts are masked, floating point has UEFI's state, and a CPU's stack has 64 KiB, of
    // which little is used. One CPU at a time calls this function.
    let result = unsafe { services.set_variable(part, data) };
    use_tables(own);
    if has_global_flag {
        // SAFETY: as before.
        unsafe { asm!("clgi", "sti", options(nostack)) };
    }
    result
}

/// Changes the tables. Both map Stile at the same addresses.
fn use_tables(root: u64) {
    // SAFETY: both tables map all that Stile uses at the same addresses.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}
