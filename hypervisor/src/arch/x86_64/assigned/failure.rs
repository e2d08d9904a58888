//! A failed IOMMU. Without it functions are not confined: all of them stop, and the machine goes on.

use core::sync::atomic::{AtomicBool, Ordering, fence};

use crate::arch::x86_64::host::pcie;
use crate::console::log;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Stops all functions if an operation of the IOMMU has failed.
#[inline]
pub fn check(result: Result<(), &'static str>) {
    if let Err(why) = result {
        stop(why);
    }
}

/// Whether functions must not access memory any more. A caller that has turned on bus mastering, and read it back, asks
/// afterwards.
pub fn are_stopped() -> bool {
    // Pairs with the fence in `stop`: either the caller finds them stopped, or `stop` finds what it has written.
    fence(Ordering::SeqCst);
    STOPPED.load(Ordering::Relaxed)
}

#[cold]
fn stop(why: &str) {
    if STOPPED.swap(true, Ordering::Relaxed) {
        return;
    }
    fence(Ordering::SeqCst);
    if let Some(bridge) = pcie::bridge() {
        bridge.stop_masters();
    }
    log!("{why}: all PCI functions are stopped until the machine starts again");
}
