//! The interface between the table walker and descriptor formats.

use super::Level;
use core::fmt::Debug;

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

/// All properties of a mapping but its output address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes<P> {
    /// Type of memory.
    pub memory: MemoryType,
    /// Allowed accesses, in the format's own type.
    pub permissions: P,
}

/// A decoded descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// No translation. Reserved encodings decode as invalid, as in hardware.
    Invalid,
    /// Points to the next-level table at this physical address.
    Table(u64),
    /// A page or block at this physical address.
    Leaf(u64),
}

/// An architecture's encoding of tables, pages and addresses: common to all its formats.
///
/// A multiple of 4 KiB must be an invalid descriptor.
pub trait Layout {
    /// Decodes a descriptor of `level`.
    fn entry(level: Level, descriptor: u64) -> Entry;

    /// A descriptor of `level` for the table of the next level at `table`.
    fn table_descriptor(level: Level, table: u64) -> u64;

    /// A page or block descriptor of `level` for the memory at `output`; `attributes` as encoded.
    fn leaf_descriptor(level: Level, output: u64, attributes: u64) -> u64;

    /// The attribute bits of a leaf descriptor.
    fn attribute_bits(descriptor: u64) -> u64;
}

/// The descriptors of one stage and translation regime: a [`Layout`] and its attributes.
pub trait Format {
    /// The layout common to the architecture's formats.
    type Layout: Layout;

    /// Allowed accesses to a page.
    type Permissions: Copy + PartialEq + Debug;

    /// Whether the format can express these permissions.
    fn supports(&self, permissions: Self::Permissions) -> bool;

    /// The attribute bits of a page or block descriptor, with the access flag set.
    fn encode(&self, attributes: Attributes<Self::Permissions>) -> u64;

    /// Decodes the attributes of a page or block descriptor. Total: a descriptor that
    /// [`encode`](Format::encode) never produces decodes to the nearest attributes that are not more
    /// permissive.
    fn decode(&self, descriptor: u64) -> Attributes<Self::Permissions>;

    /// Replaces the permissions of a page or block descriptor; no other bit changes.
    fn with_permissions(&self, descriptor: u64, permissions: Self::Permissions) -> u64;

    /// Whether a change from one valid descriptor to another of the same size requires break-before-make.
    /// Access permissions don't: see "Using break-before-make when updating translation table entries" in the
    /// manual.
    fn needs_break(&self, old: u64, new: u64) -> bool {
        let _ = (old, new);
        false
    }

    /// The level of the largest blocks that the processor supports.
    fn largest(&self) -> Level {
        Level::L1
    }

    /// Whether the access flag is set. A walk faults on a leaf without it.
    fn is_accessed(&self, descriptor: u64) -> bool;
}
