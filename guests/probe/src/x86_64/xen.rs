//! Xen, whose first domain the program then is: its console, and its numbering of APICs.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FOUND: AtomicBool = AtomicBool::new(false);

/// Notes that the program runs under Xen.
pub fn found() {
    FOUND.store(true, Relaxed);
}

/// Whether the program runs under Xen.
pub fn is_found() -> bool {
    FOUND.load(Relaxed)
}

/// Factor of APIC identifiers: vCPU `n` of Xen has the identifier `2 * n`.
pub fn apic_ids_of_a_cpu() -> u64 {
    if is_found() { 2 } else { 1 }
}

/// Prints on Xen's console: its first domain has no serial port where Xen has one. Calls of a domain in a VM need no page of hypercalls (Xen,
/// `public/arch-x86/xen-x86_64.h`, `public/xen.h`: `console_io`).
pub fn print(text: &str) {
    const CONSOLE_IO: u64 = 18;
    const WRITE: u64 = 0;
    // SAFETY: the call reads the text, and changes RAX; Xen may change the registers of its arguments.
    unsafe {
        asm!("vmmcall", inout("rax") CONSOLE_IO => _, inout("rdi") WRITE => _, inout("rsi") text.len() => _,
            inout("rdx") text.as_ptr() => _, options(nostack));
    }
}
