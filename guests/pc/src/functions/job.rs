//! Jobs of the other CPUs, which they repeat until they are stopped.

use core::sync::atomic::{AtomicBool, Ordering};

use pc::others;

static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Makes the other CPUs do a job until [`stop`].
pub fn give(job: fn()) {
    IS_STOPPED.store(false, Ordering::SeqCst);
    others::give(job);
}

/// Ends the other CPUs' job.
pub fn stop() {
    IS_STOPPED.store(true, Ordering::SeqCst);
}

/// Calls `work` until [`stop`].
pub fn until_stopped(mut work: impl FnMut()) {
    while !IS_STOPPED.load(Ordering::SeqCst) {
        work();
    }
}
