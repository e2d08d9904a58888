//! Memory of an enlightened VMCS.

use crate::field::Width;

/// Memory of an enlightened VMCS. Offsets are multiples of the width, and below 4096.
pub trait Region {
    /// Reads a field of this width, once.
    fn read(&self, offset: usize, width: Width) -> u64;

    /// Writes a field of this width.
    fn write(&self, offset: usize, width: Width, value: u64);
}
