//! The counter, and EL2's physical timer, which is enabled only while the scheduler has a deadline on this CPU: the end of
//! a slice, a sleeper's timer, or another attempt at direct interrupts.

use super::sysreg::{isb, read_sysreg, write_sysreg};

/// CNTPCT_EL0: the counter, in ticks, common to all CPUs.
#[inline(always)]
pub fn now() -> u64 {
    read_sysreg!(CNTPCT_EL0)
}

/// CNTFRQ_EL0: ticks per second.
pub fn frequency() -> u64 {
    read_sysreg!(CNTFRQ_EL0)
}

/// Returns the physical count at which a timer with the compare value `compare` expires; the current count if it has
/// expired. The timer compares with a virtual count: the physical one less `offset` (CNTVOFF_EL2), modulo 2^64.
pub fn virtual_deadline(compare: u64, offset: u64) -> u64 {
    let now = now();
    now.saturating_add(compare.saturating_sub(now.wrapping_sub(offset)))
}

/// Sets the timer to expire at a physical count, in ticks (CNTHP_CVAL_EL2), or disables it.
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
