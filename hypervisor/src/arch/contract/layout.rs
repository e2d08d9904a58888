//! Stile's address space.

use stile_board::footprint::Footprint;

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
    /// Bytes that each CPU but the first takes in addition to its stack.
    const CPU_MEMORY: u64;
    /// Stile's memory as `stile check` reports it. The hypervisor does not compile if that is wrong.
    const FOOTPRINT: Footprint;

    /// Makes new entries visible to table walks.
    fn complete_map();
}
