//! Shadow second stages: for each second stage that L1 makes for a VM of its own, a table that leads from L2's
//! addresses to the machine's, made of L1's table and L0's.
//!
//! - [`Stage2`]: L1's VTCR_EL2 and VTTBR_EL2, and the walk of the tables they name
//! - [`resolve`]: what becomes of an access of L2 that found nothing in the shadow
//! - [`Invalidations`]: how a fill notices that what it found is no longer so
//! - [`Pool`]: the shadows of one VM; each with a VMID of the machine's own
//!
//! A shadow works as a large TLB. It is filled at L2's faults, and emptied by what L1 must do after it has changed its
//! tables: TLB maintenance ([`Pool::invalidate`]). Nothing of L1's tables is kept, so nothing in them can surprise.
//!
//! Of L1's features of the second stage there are none beyond Armv8.0 but its three granules and 16-bit VMIDs: no
//! hardware update of access flag and dirty state, FEAT_XNX, FEAT_S2FWB, FEAT_TTST, or addresses of more than 48 bits.

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
