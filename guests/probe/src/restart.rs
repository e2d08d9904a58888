//! The operation `restart`: the machine resets itself, and its programs are loaded and started again.
//!
//! Progress is kept in RAM that no file is loaded to, which a reset preserves. It is alone: the other operations would
//! run again after each reset.

use core::ptr::with_exposed_provenance_mut;

use crate::arch::{self, Platform};
use crate::measure;

/// Name of the operation.
pub const NAME: &str = "restart";

/// Marks the progress as valid.
const VALID: u64 = u64::from_le_bytes(*b"restarts");

/// Restarts before the measurement.
const WARM_UP: u64 = 2;

/// Restarts of this machine until now.
#[derive(Clone, Copy)]
struct Progress {
    valid: u64,
    restarts: u64,
    /// Ticks at the begin of the measurement.
    start: u64,
}

/// Counts this start, and resets the machine until all restarts have happened. Then it prints their line.
pub fn run(platform: &Platform) {
    let at = with_exposed_provenance_mut::<Progress>(arch::KEPT);
    // SAFETY: `KEPT` is RAM, aligned, outside of the program and the loaded files, which nothing else uses; any bytes
    // are a value.
    let before = unsafe { at.read_volatile() };
    let mut progress = if before.valid == VALID { before } else { Progress { valid: VALID, restarts: 0, start: 0 } };
    let iterations = platform.arguments.iterations;
    if progress.restarts == WARM_UP {
        progress.start = arch::now();
        arch::begin_section();
    }
    if progress.restarts == WARM_UP + iterations {
        arch::end_section();
        // SAFETY: see above.
        unsafe { at.write_volatile(Progress { valid: 0, ..progress }) };
        return measure::print(NAME, arch::now().wrapping_sub(progress.start), iterations);
    }
    progress.restarts += 1;
    // SAFETY: see above.
    unsafe { at.write_volatile(progress) };
    arch::reset(platform)
}
