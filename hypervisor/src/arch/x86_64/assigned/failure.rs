//! A failed IOMMU. Without it functions are not confined: all of them stop, and the machine goes on.

use crate::arch::x86_64::host::pcie;
use crate::assigned::failure::stop;

/// Stops all functions if an operation of the IOMMU has failed.
#[inline]
pub fn check(result: Result<(), &'static str>) {
    if let Err(why) = result {
        stop(why, stop_masters);
    }
}

fn stop_masters() {
    if let Some(bridge) = pcie::bridge() {
        bridge.stop_masters();
    }
}
