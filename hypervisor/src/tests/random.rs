//! The numbers by which tests choose: the same at each run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the next number of a fixed sequence (xorshift64*), reduced to less than `below`.
pub fn random(below: u64) -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    let mut x = STATE.load(Ordering::Relaxed);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    STATE.store(x, Ordering::Relaxed);
    (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
}
