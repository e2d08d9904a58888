//! The counter, and EL2's own physical timer, which runs only while vCPUs share this CPU or one sleeps with a deadline.

use super::sysreg::{isb, read_sysreg, write_sysreg};

/// CNTPCT_EL0: ticks since some moment, the same on all CPUs.
#[inline(always)]
pub fn now() -> u64 {
    read_sysreg!(CNTPCT_EL0)
}

/// CNTFRQ_EL0: ticks a second.
pub fn frequency() -> u64 {
    read_sysreg!(CNTFRQ_EL0)
}

/// Returns the value of the physical counter at which a virtual timer rings (now, if it does already): its compare value counts with
/// CNTVOFF_EL2, modulo 2^64.
pub fn virtual_deadline(compare: u64, offset: u64) -> u64 {
    let now = now();
    now.saturating_add(compare.saturating_sub(now.wrapping_sub(offset)))
}

/// Programs CNTHP_CVAL_EL2, or turns the timer off.
pub fn set_deadline(deadline: Option<u64>) {
    match deadline {
        Some(at) => {
            write_sysreg!(CNTHP_CVAL_EL2, at);
            write_sysreg!(CNTHP_CTL_EL2, 1);
        }
        None => write_sysreg!(CNTHP_CTL_EL2, 0),
    }
    isb();
}
