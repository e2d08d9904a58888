//! Reports of a CPU on which Stile has failed.

use core::fmt::{self, Write};
use core::ops::Range;

use crate::arch::Cpu;

/// Output of a panic. No method takes a lock, allocates, or relies on anything that may have failed.
pub trait Failure {
    /// Where this CPU's block is. Before it has one, any address.
    fn block() -> *const Cpu;

    /// The caller's frame pointer.
    fn frame_pointer() -> u64;

    /// The mapped part of a CPU's stack that an address is in.
    fn stack_of(address: u64) -> Option<Range<u64>>;

    /// Where Stile's code is.
    fn code() -> Range<u64>;

    /// Writes the guest's state at the exit that is being handled.
    fn write_guest(out: &mut dyn Write, cpu: &Cpu) -> fmt::Result;
}
