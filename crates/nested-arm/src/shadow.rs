//! Shadow second stages: for each second stage of L1, a table from L2's addresses to the machine's, combined
//! from L1's table and L0's.
//!
//! - [`Stage2`]: L1's VTCR_EL2 and VTTBR_EL2, and the walk of its tables
//! - [`resolve`]: handling of an L2 access that faults in the shadow
//! - [`Invalidations`]: detection of fills that race with an invalidation
//! - [`Pool`]: the shadows of one VM, each with a VMID of the machine
//!
//! A shadow acts as a large TLB. It is filled at L2's faults, and emptied by the TLB maintenance that L1 must
//! do after changing its tables ([`Pool::invalidate`]). Nothing else of L1's tables is cached.
//!
//! Second-stage features offered to L1: Armv8.0 with its three granules and 16-bit VMIDs. Not offered:
//! hardware update of access flag and dirty state, FEAT_XNX, FEAT_S2FWB, FEAT_TTST, addresses of more than 48
//! bits.

mod extents;
mod format;
mod pool;
mod reserve;
mod resolve;
mod sequence;
mod stage2;
mod walk;

pub use format::{LeafSize, Shadow, ShadowPermissions};
pub use pool::{Context, ContextId, Pool, Tlb};
pub use reserve::Frames;
pub use resolve::{Mapping, Need, Resolution, resolve};
pub use sequence::{Invalidations, Observed};
pub use stage2::{Granule, Stage2};
pub use walk::{GuestMemory, Leaf, WalkFault, WalkFaultKind};
