//! Physical SErrors: whose they are.
//!
//! HCR_EL2.AMO takes them to EL2, where they are masked. One that is pending while Stile runs is taken at the next entry, by the guest
//! that is entered: so a vCPU's errors must be found before another one is loaded. An ESB (FEAT_RAS) makes them pending and, as they are
//! masked, moves them to DISR_EL1 (Arm ARM, Error Synchronization Barrier). Without FEAT_RAS there is no such barrier: an SError is of the vCPU
//! in which it is taken.

use stile_sysreg::serror::{DEFERRED, Severity, severity};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// Sets up this CPU.
pub fn setup() {
    if features::get().ras {
        // VSESR_EL2: guests, which are told that there is no RAS, find an uncategorized virtual SError.
        write_sysreg!(VSESR_EL2, 0);
        // DISR_EL1 and VDISR_EL2: what firmware left.
        write_sysreg!(DISR_EL1, 0);
        write_sysreg!(VDISR_EL2, 0);
    }
}

/// Whether an SError with this syndrome calls for a virtual one in the vCPU that caused it.
///
/// # Panics
/// If the error may have spread beyond that vCPU.
pub fn is_guests(syndrome: u64) -> bool {
    match severity(syndrome, features::get().ras) {
        Severity::Harmless => false,
        Severity::Contained => true,
        Severity::Uncontainable => panic!("an uncontainable error: SError, syndrome {syndrome:#x}"),
    }
}

/// Finds the errors of the vCPU that is being put. Returns whether it gets a virtual SError for them.
#[inline(always)]
pub fn put() -> bool {
    if !features::get().ras {
        return false;
    }
    // VDISR_EL2: a guest, which is told that there is no RAS, can reach it as DISR_EL1 all the same.
    write_sysreg!(VDISR_EL2, 0);
    // SAFETY: a barrier: ESB.
    unsafe { core::arch::asm!("hint #16", options(nostack, preserves_flags)) };
    read_sysreg!(DISR_EL1) & DEFERRED != 0 && take_deferred()
}

#[cold]
fn take_deferred() -> bool {
    let disr = read_sysreg!(DISR_EL1);
    write_sysreg!(DISR_EL1, 0);
    is_guests(disr)
}
