//! A failed SMMU or ITS. Without them functions are not confined: all of them stop, and the machine goes on.

use crate::arch::aarch64::host::board;
use crate::assigned::failure::stop;

/// Stops all functions if an operation of the SMMU or the ITS has failed.
#[inline]
pub fn check(result: Result<(), &'static str>) {
    if let Err(why) = result {
        stop(why, stop_masters);
    }
}

fn stop_masters() {
    if let Some(bridge) = board::get().pci.as_ref() {
        bridge.stop_masters();
    }
}
