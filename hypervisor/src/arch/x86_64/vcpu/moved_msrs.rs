//! MSRs of a vCPU that load and put move.

use crate::arch::x86_64::host::instructions::{cpuid, msr};

/// MSRs that load and put move.
pub const MSRS: [u32; 6] = [msr::STAR, msr::LSTAR, msr::CSTAR, msr::FMASK, msr::KERNEL_GS_BASE, msr::TSC_AUX];
const _: () = assert!(MSRS.len() == stile_snapshot::x86_64::MSRS);

/// Returns the number of those that this CPU has: TSC_AUX, the last one, does not exist on all.
pub fn count() -> usize {
    let has_rdtscp = cpuid(0x8000_0001, 0).edx & 1 << 27 != 0;
    if has_rdtscp { MSRS.len() } else { MSRS.len() - 1 }
}
