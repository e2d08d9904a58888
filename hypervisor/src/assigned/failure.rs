//! Failure of the hardware that confines PCI functions. Without it all of them stop, and the machine goes on.

use core::sync::atomic::{AtomicBool, Ordering, fence};

use crate::console::log;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether functions must not access memory any more. A caller that has turned on bus mastering, and read it back, asks
/// afterwards.
pub fn are_stopped() -> bool {
    // Pairs with the fence in `stop`: either the caller finds them stopped, or `stop` finds what it has written.
    fence(Ordering::SeqCst);
    STOPPED.load(Ordering::Relaxed)
}

/// Stops all functions for a reason, once: `stop_masters` turns off the bus mastering of each.
#[cold]
pub fn stop(why: &str, stop_masters: impl FnOnce()) {
    if STOPPED.swap(true, Ordering::Relaxed) {
        return;
    }
    fence(Ordering::SeqCst);
    stop_masters();
    log!("{why}: all PCI functions are stopped until the machine starts again");
}
