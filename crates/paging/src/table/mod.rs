//! Translation tables with pages of 4 KiB: Arm's (VMSAv8-64) and Intel's, of the second stage and of the hypervisor's own first stage.
//!
//! [`PageTable`] walks and changes tables; it reaches their memory through [`TableMemory`], and tells
//! [`Maintenance`] which TLB entries must go and when. What descriptors look like is a [`Format`]:
//! [`Stage2`], [`El2`], [`Ept`] or [`Ia32e`]. Levels have Arm's numbers: level 0 is Intel's PML4, level 3 its page table.
//! The rules of break before make are Arm's, which are the stricter ones.
//!
//! Each operation first looks at what it will do without changing anything, then sets all the
//! tables aside that it will need, and then can't fail: an error leaves everything as it was.

mod chain;
mod change;
mod el2;
mod ept;
mod format;
mod geometry;
mod ia32e;
mod intel;
mod level;
mod maintenance;
mod map;
mod memory;
mod stage2;
mod translate;
mod vmsa;

pub use el2::{El2, El2Permissions};
pub use ept::{Ept, EptPermissions};
pub use format::{Attributes, Entry, Format, Layout, MemoryType};
pub use geometry::Geometry;
pub use ia32e::{Ia32e, Ia32ePermissions};
pub use level::{ENTRIES, Level};
pub use maintenance::{EntryKind, Invalidation, Maintenance, Pending};
pub use map::Mapping;
pub use memory::{TableMemory, TableRead};
pub use stage2::{Stage2, Stage2Permissions};
pub use translate::{Fault, FaultReason, Translation};
pub use vmsa::Vmsa;

use crate::PAGE_SIZE;
use level::Span;

/// Why an operation on a table was refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// An address or size is not a multiple of 4 KiB, or a root not of its own size.
    Unaligned,
    /// The range is empty, wraps around, or lies beyond the input address size.
    InputRange,
    /// The output range wraps around or lies beyond the physical address size.
    OutputRange,
    /// The format can't express the attributes.
    Attributes,
    /// This input address is mapped already.
    AlreadyMapped(u64),
    /// There is no memory for the tables that the operation needs.
    OutOfMemory,
}

/// A translation table and its tables of lower levels.
///
/// Holds no memory itself: the same table may be used through any [`TableMemory`] that reaches it.
/// Changes need `&mut`; that is all the locking there is.
#[derive(Debug)]
pub struct PageTable<F> {
    format: F,
    geometry: Geometry,
    root: u64,
}

impl<F: Format> PageTable<F> {
    /// A table with its root at physical address `root`: [`Geometry::root_size`] bytes, aligned to that,
    /// zeroed, or an existing table.
    ///
    /// # Errors
    /// [`Error::Unaligned`], or [`Error::OutputRange`] if the root lies beyond the physical address size.
    pub fn new(format: F, geometry: Geometry, root: u64) -> Result<Self, Error> {
        let size = geometry.root_size();
        if !root.is_multiple_of(size) {
            return Err(Error::Unaligned);
        }
        if root >= geometry.pa_range().limit() {
            return Err(Error::OutputRange);
        }
        Ok(Self { format, geometry, root })
    }

    /// Physical address of the root, for `VTTBR_EL2` or `TTBR0_EL2`.
    #[must_use]
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// The shape of the table.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The format of its descriptors.
    #[must_use]
    pub const fn format(&self) -> &F {
        &self.format
    }

    /// Checks a range of input addresses.
    fn input(&self, address: u64, size: u64) -> Result<Span, Error> {
        if !address.is_multiple_of(PAGE_SIZE) || !size.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        let end = address.checked_add(size).ok_or(Error::InputRange)?;
        if size == 0 || end > 1 << self.geometry.input_bits() {
            return Err(Error::InputRange);
        }
        Ok(Span { start: address, end })
    }
}

/// Reads an entry of a table that the walker owns, which can't fail.
fn read<M: TableMemory>(memory: &M, table: u64, index: usize) -> u64 {
    let Ok(descriptor) = memory.read(table, index);
    descriptor
}
