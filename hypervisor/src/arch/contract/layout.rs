//! Stile's address space.

use crate::stacks::Stacks;

/// Where the parts of Stile's address space are: [`crate::address_space`] describes them. A back end that has this also names the types of
/// its tables: `Format`, `Permissions` and `Tables`.
pub trait Layout {
    /// Where physical address 0 is in the direct map.
    const PHYSMAP: u64;
    /// Where physical address 0 is among the devices that Stile drives.
    const DEVICES: u64;
    /// The CPUs' stacks.
    const STACKS: Stacks;

    /// Makes entries that were written visible to the table walk.
    fn complete_map();
}
