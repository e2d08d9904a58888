//! Bounded waiting. The limits are generous: a guest may share its CPU with many others, on a slow emulator.

use crate::{instruction, mrs};

/// The limit of [`until`], in seconds of the virtual counter.
const LIMIT_SECONDS: u64 = 30;

/// The most of the time between two polls of [`until`] that counts.
const STEP_MICROSECONDS: u64 = 100_000;

/// The virtual counter, not read ahead of earlier instructions.
pub fn now() -> u64 {
    instruction!("isb");
    mrs!("CNTVCT_EL0")
}

/// The counter's frequency in Hz.
pub fn frequency() -> u64 {
    mrs!("CNTFRQ_EL0")
}

/// Counter ticks in a number of microseconds, at least 1.
pub fn ticks(microseconds: u64) -> u64 {
    (frequency() * microseconds / 1_000_000).max(1)
}

/// Polls until the condition holds; returns false at the limit. An emulator that its host stops for longer than [`STEP_MICROSECONDS`] uses up
/// no more than that.
pub fn until(mut condition: impl FnMut() -> bool) -> bool {
    let (limit, step) = (LIMIT_SECONDS * frequency(), ticks(STEP_MICROSECONDS));
    let (mut waited, mut last) = (0, now());
    loop {
        if condition() {
            return true;
        }
        if waited > limit {
            return false;
        }
        let at = now();
        waited += (at - last).min(step);
        last = at;
        core::hint::spin_loop();
    }
}

/// Spins for a number of microseconds.
pub fn spin(microseconds: u64) {
    let end = now() + ticks(microseconds);
    while now() < end {
        core::hint::spin_loop();
    }
}

/// Spins for a while, in which an unwanted event would have occurred. Not a proof, but as long as is
/// affordable.
pub fn settle() {
    spin(300);
}
