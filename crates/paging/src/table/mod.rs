//! Translation tables with the 4 KiB granule: Arm's (VMSAv8-64) and Intel's; second stage and the
//! hypervisor's own first stage.
//!
//! [`PageTable`] walks and changes tables through [`TableMemory`], and reports the required TLB invalidations
//! to [`Maintenance`]. A [`Format`] encodes the descriptors: [`Stage2`], [`El2`], [`Ept`], [`Npt`],
//! [`Ia32e`], or [`AmdIommu`] for functions' DMA.
//! Levels have Arm's numbers: level 0 is Intel's PML4, level 3 its page table.
//! Break-before-make follows Arm's rules, which are stricter.
//!
//! Each operation first plans without changing anything, then reserves all tables it needs, and then can't
//! fail: an error leaves everything unchanged.

mod amd_iommu;
mod chain;
mod change;
mod el2;
mod ept;
mod foreign;
mod format;
mod geometry;
mod ia32e;
mod intel;
mod level;
mod maintenance;
mod map;
mod memory;
mod npt;
mod stage2;
mod translate;
mod vmsa;

pub use amd_iommu::{AmdIommu, IommuPermissions};
pub use el2::{El2, El2Permissions};
pub use ept::{Ept, EptPermissions};
pub use foreign::Foreign;
pub use format::{Attributes, Entry, Format, Layout, MemoryType};
pub use geometry::Geometry;
pub use ia32e::{Ia32e, Ia32ePermissions};
pub use level::{ENTRIES, Level};
pub use maintenance::{EntryKind, Invalidation, Maintenance, Pending};
pub use map::Mapping;
pub use memory::{TableMemory, TableRead};
pub use npt::Npt;
pub use stage2::{Stage2, Stage2Permissions};
pub use translate::{Fault, FaultReason, Translation};
pub use vmsa::Vmsa;

use crate::PAGE_SIZE;
use level::Span;

/// Reason for which an operation was refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// An address or size is not a multiple of 4 KiB, or a root is not aligned to its size.
    Unaligned,
    /// The range is empty, wraps around, or lies beyond the input address size.
    InputRange,
    /// The output range wraps around or lies beyond the physical address size.
    OutputRange,
    /// The format can't express the attributes.
    Attributes,
    /// This input address is mapped already.
    AlreadyMapped(u64),
    /// No memory for the required tables.
    OutOfMemory,
}

/// A translation table and its tables of lower levels.
///
/// Holds no memory itself: the same table can be used through any [`TableMemory`] that reaches it. Changes
/// need `&mut`; there is no other locking.
#[derive(Debug)]
pub struct PageTable<F> {
    format: F,
    geometry: Geometry,
    root: u64,
}

impl<F: Format> PageTable<F> {
    /// Creates a table with its root at physical address `root`: [`Geometry::root_size`] bytes, aligned to
    /// that, zeroed or an existing table.
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

    /// The geometry of the table.
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

/// Reads an entry of a table that the walker owns; infallible.
fn read<M: TableMemory>(memory: &M, table: u64, index: usize) -> u64 {
    let Ok(descriptor) = memory.read(table, index);
    descriptor
}
