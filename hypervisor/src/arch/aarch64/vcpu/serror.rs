//! Attribution of physical SErrors to vCPUs.
//!
//! HCR_EL2.AMO routes them to EL2, where they are masked. An SError that is pending while Stile runs is taken after
//! the next entry, from whichever guest runs: a vCPU's errors must be detected before another one is loaded. An ESB
//! (FEAT_RAS) makes outstanding errors pending and, as they are masked, defers them to DISR_EL1 (Arm ARM, Error
//! Synchronization Barrier). Without FEAT_RAS an SError is attributed to the vCPU from which it is taken.

use stile_sysreg::serror::{DEFERRED, Severity, severity};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// Initializes this CPU.
pub fn setup() {
    if features::get().ras {
        // VSESR_EL2: guests, whose ID registers hide RAS, get an uncategorized virtual SError.
        write_sysreg!(VSESR_EL2, 0);
        // Clears firmware's values of DISR_EL1 and VDISR_EL2.
        write_sysreg!(DISR_EL1, 0);
        write_sysreg!(VDISR_EL2, 0);
    }
}

/// Whether an SError with this syndrome requires a virtual one in the vCPU that caused it.
///
/// # Panics
/// If the error may have propagated beyond that vCPU.
pub fn needs_virtual_serror(syndrome: u64) -> bool {
    match severity(syndrome, features::get().ras) {
        Severity::Harmless => false,
        Severity::Contained => true,
        Severity::Uncontainable => panic!("an uncontainable error: SError, syndrome {syndrome:#x}"),
    }
}

/// Detects the errors of the vCPU that is being put. Returns whether it gets a virtual SError.
#[inline(always)]
pub fn put() -> bool {
    if !features::get().ras {
        return false;
    }
    // Guests can read VDISR_EL2 as DISR_EL1, although their ID registers hide RAS: the next vCPU must not see this one's.
    write_sysreg!(VDISR_EL2, 0);
    // SAFETY: ESB is a barrier without other effect on memory.
    unsafe { core::arch::asm!("hint #16", options(nostack, preserves_flags)) };
    read_sysreg!(DISR_EL1) & DEFERRED != 0 && take_deferred()
}

#[cold]
fn take_deferred() -> bool {
    let disr = read_sysreg!(DISR_EL1);
    write_sysreg!(DISR_EL1, 0);
    needs_virtual_serror(disr)
}
