//! The counter, and EL2's physical timer, which is enabled only while vCPUs share this CPU or a sleeper has a
//! deadline.

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

/// Physical count at which a virtual timer expires (now, if it has): its compare value includes CNTVOFF_EL2, modulo
/// 2^64.
pub fn virtual_deadline(compare: u64, offset: u64) -> u64 {
    let now = now();
    now.saturating_add(compare.saturating_sub(now.wrapping_sub(offset)))
}

/// Programs CNTHP_CVAL_EL2, or disables the timer.
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
