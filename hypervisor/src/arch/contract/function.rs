//! PCI functions that VMs own; only in back ends that assign them.

use core::ops::Range;

use stile_paging::table::Error;
use stile_pci::{ConfigSpace, Vector};

/// Destination of a vector's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directed {
    /// They arrive at a vCPU. If not, the vector is masked.
    pub arrives: bool,
    /// Their new data, if the physical entry's is not constant.
    pub data: Option<u32>,
}

/// A function's DMA and messages, and the machine's access to its registers.
pub trait FunctionPart {
    /// Its physical configuration space.
    type Config: ConfigSpace;

    /// Guest-physical addresses at which BARs are mapped.
    const WINDOW: Range<u64>;

    /// Address and data of the message of a vector, in the function's own table.
    fn message(vector: usize) -> (u64, u32);

    /// Directs the messages of vector `number` by the guest's entry of the MSI-X table; `None`: the table has no such entry.
    fn direct(&mut self, number: usize, vector: Option<Vector>) -> Directed;

    /// Drops the guest's routes of messages, and messages in flight. `vectors` is the function's number of vectors.
    fn reset(&mut self, vectors: usize);

    /// Drops messages, including those in flight, of all of the function's `vectors`.
    fn disconnect(&self, vectors: usize);

    /// Whether functions must not access memory any more, since the IOMMU has failed. Asked again after a write that turned on bus
    /// mastering.
    fn are_stopped() -> bool;

    /// Whether this function must not access memory until its VM starts again, because of its faults. Asked as
    /// [`FunctionPart::are_stopped`].
    fn is_cut_off(&self) -> bool;

    /// Reads 32 bits at the virtual address of a register that [`crate::address_space::device`] mapped.
    fn read32(register: usize) -> u32;

    /// Writes 32 bits, as [`FunctionPart::read32`].
    fn write32(register: usize, value: u32);

    /// Writes the lowest 1, 2, 4 or 8 bytes of a value, as [`FunctionPart::read32`].
    fn write(register: usize, bytes: u64, value: u64);
}

/// The second stage that a guest's accesses to BARs go through.
pub trait SecondStage {
    /// Maps registers, whole pages, at a guest-physical address.
    ///
    /// # Errors
    /// Something is mapped there already, or there is no memory for tables.
    fn map_device(&self, gpa: u64, pa: u64, size: u64) -> Result<(), Error>;

    /// Unmaps registers mapped by [`SecondStage::map_device`], with TLB invalidation. A vCPU of the VM is loaded on
    /// this CPU.
    fn unmap_device(&self, gpa: u64, size: u64);
}
