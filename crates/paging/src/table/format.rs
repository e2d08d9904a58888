//! What a descriptor format must tell the walker.

use super::Level;
use core::fmt::Debug;

/// Bits 47 to 12: the address in a table or page descriptor.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const VALID: u64 = 1 << 0;
/// Bit 1: set in table and page descriptors, clear in block descriptors.
const TABLE_OR_PAGE: u64 = 1 << 1;

/// The type of memory behind a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryType {
    /// Normal, write-back cacheable, inner shareable: ordinary RAM.
    Normal,
    /// Normal, non-cacheable.
    NonCacheable,
    /// Device-nGnRE: registers of a device.
    Device,
}

/// Everything about a mapping except where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<P> {
    /// Type of memory.
    pub memory: MemoryType,
    /// Who may do what; the format has its own type for it.
    pub permissions: P,
}

/// A descriptor, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Translates nothing. Reserved encodings count as invalid, as they do for the hardware.
    Invalid,
    /// Leads to the table of the next level at this physical address.
    Table(u64),
    /// A page or block that begins at this physical address.
    Leaf(u64),
}

/// The descriptors of one stage and translation regime.
///
/// Valid bit, type bit and addresses are the same in all VMSAv8-64 formats of the 4 KiB granule and are
/// provided; a format adds the attributes.
pub trait Format {
    /// Who may do what with a page.
    type Permissions: Copy + PartialEq + Debug;

    /// Whether the format can express these permissions.
    fn supports(&self, permissions: Self::Permissions) -> bool;

    /// The attribute bits of a page or block descriptor, with the access flag set.
    fn encode(&self, attributes: Attributes<Self::Permissions>) -> u64;

    /// The attributes of a page or block descriptor. Any descriptor has an answer: one that
    /// [`encode`](Format::encode) never makes gets the nearest that is not more permissive.
    fn decode(&self, descriptor: u64) -> Attributes<Self::Permissions>;

    /// The same page or block descriptor with other permissions and no other bit changed.
    fn with_permissions(&self, descriptor: u64, permissions: Self::Permissions) -> u64;

    /// Whether a change of permissions from one valid descriptor to another of the same size must go
    /// through an invalid one. See "Using break-before-make when updating translation table entries"
    /// in the manual: access permissions need not.
    fn needs_break(&self, old: u64, new: u64) -> bool {
        let _ = (old, new);
        false
    }

    /// Whether the access flag is set. A walk that meets a leaf without it faults.
    fn is_accessed(&self, descriptor: u64) -> bool;
}

/// Takes a descriptor of `level` apart.
pub(super) fn entry(level: Level, descriptor: u64) -> Entry {
    if descriptor & VALID == 0 {
        return Entry::Invalid;
    }
    let large = descriptor & TABLE_OR_PAGE == 0;
    match (level, large) {
        (Level::L3, false) => Entry::Leaf(descriptor & ADDRESS),
        (Level::L1 | Level::L2, true) => Entry::Leaf(descriptor & ADDRESS & !(level.size() - 1)),
        (Level::L0 | Level::L1 | Level::L2, false) => Entry::Table(descriptor & ADDRESS),
        (Level::L0 | Level::L3, true) => Entry::Invalid,
    }
}

/// A descriptor for the table at `table`.
pub(super) const fn table_descriptor(table: u64) -> u64 {
    (table & ADDRESS) | TABLE_OR_PAGE | VALID
}

/// A page or block descriptor of `level` for the memory at `output`; `attributes` as encoded.
pub(super) const fn leaf_descriptor(level: Level, output: u64, attributes: u64) -> u64 {
    let kind = if matches!(level, Level::L3) { TABLE_OR_PAGE } else { 0 };
    (output & ADDRESS) | attributes | kind | VALID
}

/// The attribute bits of a leaf descriptor.
pub(super) const fn attribute_bits(descriptor: u64) -> u64 {
    descriptor & !(ADDRESS | TABLE_OR_PAGE | VALID)
}
