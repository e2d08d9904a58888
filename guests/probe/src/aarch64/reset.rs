//! Resets of the machine, and what they preserve.

use super::platform::Platform;

/// A place in RAM that no file is loaded to, and nothing else uses.
pub const KEPT: usize = 0x4300_0000;

/// Resets the machine.
pub fn reset(platform: &Platform) -> ! {
    super::psci::system_reset(platform.smc)
}
