//! State of a CPU on which Stile failed.

use core::fmt::{self, Write};
use core::ops::Range;

use crate::arch::Cpu;

/// Output of a panic. No method takes a lock, allocates, or depends on state that may be corrupt.
pub trait Failure {
    /// Address of this CPU's block; arbitrary before it is installed.
    fn block() -> *const Cpu;

    /// Frame pointer of the caller.
    fn frame_pointer() -> u64;

    /// The mapped part of the CPU stack that contains an address.
    fn stack_of(address: u64) -> Option<Range<u64>>;

    /// Address range of Stile's code.
    fn code() -> Range<u64>;

    /// Returns the offset in the image's table of functions of the one at an offset in the image.
    fn symbol_offset(offset: u32) -> u32 {
        offset
    }

    /// Writes the guest's state at the exit being handled.
    fn write_guest(out: &mut dyn Write, cpu: &Cpu) -> fmt::Result;
}
