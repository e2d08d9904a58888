//! Memory attributes by index.

/// Attributes in [`MAIR_EL2`], by the index that first-stage descriptors use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MairIndex {
    /// Normal memory, inner and outer write-back, allocating on reads and writes.
    Normal = 0,
    /// Device-nGnRE.
    Device = 1,
    /// Normal memory, inner and outer non-cacheable.
    NonCacheable = 2,
}

/// The value of `MAIR_EL2` that [`El2`](crate::table::El2) tables assume. Unused attributes are 0:
/// Device-nGnRnE.
pub const MAIR_EL2: u64 =
    0xff << (8 * MairIndex::Normal as u32) | 0x04 << (8 * MairIndex::Device as u32) | 0x44 << (8 * MairIndex::NonCacheable as u32);
