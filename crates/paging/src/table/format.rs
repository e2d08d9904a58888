//! What a descriptor format must tell the walker.

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
pub enum Entry {
    /// Translates nothing. Reserved encodings count as invalid, as they do for the hardware.
    Invalid,
    /// Leads to the table of the next level at this physical address.
    Table(u64),
    /// A page or block that begins at this physical address.
    Leaf(u64),
}

/// How descriptors of an architecture tell tables from pages, and where the address is in them: the same for all its formats.
///
/// A multiple of 4 KiB is an invalid descriptor in each.
pub trait Layout {
    /// Takes a descriptor of `level` apart.
    fn entry(level: Level, descriptor: u64) -> Entry;

    /// A descriptor for the table at `table`.
    fn table_descriptor(table: u64) -> u64;

    /// A page or block descriptor of `level` for the memory at `output`; `attributes` as encoded.
    fn leaf_descriptor(level: Level, output: u64, attributes: u64) -> u64;

    /// The attribute bits of a leaf descriptor.
    fn attribute_bits(descriptor: u64) -> u64;
}

/// The descriptors of one stage and translation regime: a [`Layout`], and the attributes.
pub trait Format {
    /// What is the same for all formats of the architecture.
    type Layout: Layout;

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

    /// The level of the largest blocks that the processor takes.
    fn largest(&self) -> Level {
        Level::L1
    }

    /// Whether the access flag is set. A walk that meets a leaf without it faults.
    fn is_accessed(&self, descriptor: u64) -> bool;
}
