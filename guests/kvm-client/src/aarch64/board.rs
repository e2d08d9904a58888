//! Addresses of the VM's board.

use std::ops::Range;

/// Start of RAM in the VM.
pub const RAM: u64 = 0x4000_0000;

/// The address of the board's clock, which is not emulated: without its identification, a driver ignores it.
pub const CLOCK: Range<u64> = 0x0901_0000..0x0901_1000;
