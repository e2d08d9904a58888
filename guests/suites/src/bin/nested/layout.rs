//! L2's physical addresses.

/// L2's physical address of its code.
pub const CODE: u64 = 0x8000_0000;
/// L2's physical address of its vectors, in the same page: each is an HVC with [`crate::guest::VECTOR`] plus the vector's
/// number.
pub const VECTORS: u64 = CODE + 0x800;
/// L2's physical address of a page of data.
pub const DATA: u64 = 0x8020_0000;
