//! Resets of the machine, and what they preserve.

use super::platform::Platform;

/// A place in RAM that no file is loaded to, and nothing else uses.
pub const KEPT: usize = 0x0300_0000;

/// Resets the machine.
pub fn reset(_platform: &Platform) -> ! {
    super::cpu::reset()
}
