//! Stile's address space.

use crate::stacks::Stacks;

/// Layout of Stile's address space, described in [`crate::address_space`]. A back end that implements this also names
/// the types of its tables: `Format`, `Permissions` and `Tables`.
pub trait Layout {
    /// Address of physical address 0 in the direct map.
    const PHYSMAP: u64;
    /// Address of physical address 0 in the device mappings.
    const DEVICES: u64;
    /// The CPUs' stacks.
    const STACKS: Stacks;

    /// Makes new entries visible to table walks.
    fn complete_map();
}
