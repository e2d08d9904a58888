//! Architecture-specific part of a VM.

use stile_blob::Techniques;
use stile_paging::frames::Piece;
use stile_paging::table::Error;
use stile_sched::CpuSet;

use crate::arena::Arena;

/// Second stage, interrupt controller and further state of a VM. Shared by all CPUs.
pub trait VmPart: Sized {
    /// Second-stage tables of a VM that is being created.
    type Tables: Send;

    /// Creates tables that map nothing.
    ///
    /// # Errors
    /// The CPU does not support their format, or memory is insufficient.
    fn tables(arena: &'static Arena) -> Result<Self::Tables, &'static str>;

    /// Reserves tables for a part of the VM's RAM, in whole GiB but for its ends, so that [`VmPart::map_ram`] cannot run
    /// out of memory. An exit does so for a part that is not too large.
    ///
    /// # Errors
    /// Memory is insufficient, or the part is beyond the CPU's second stage.
    fn reserve(tables: &mut Self::Tables, part: &Piece, arena: &'static Arena) -> Result<(), &'static str>;

    /// Creates the part of VM `number` with RAM in `pieces`, of which nothing is mapped yet, but for which `tables` were
    /// reserved. Reserves all other memory that the VM will need; all of it comes from the VM's `arena`, which is freed with
    /// the VM.
    ///
    /// # Errors
    /// The CPU does not support the configuration, or memory is insufficient.
    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        tables: Self::Tables,
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Self, &'static str>;

    /// Bytes of large allocations of [`VmPart::new`] from the arena, which are cleared ahead in bounded pieces; 0 if there
    /// are none.
    fn memory(_config: &stile_blob::Vm<'_>) -> u64 {
        0
    }

    /// Reason why VM `number`, which is created while the machine runs, can't have direct interrupts on these CPUs, if any.
    fn obstacle_to_direct(_number: usize, _cpus: &CpuSet) -> Option<&'static str> {
        None
    }

    /// Resets the part of VM `number`. No vCPU is loaded; the first one runs the reset as its errand, the others are off.
    fn reset(&self, number: usize);

    /// Maps a filled part of the VM's RAM. Called by any CPU; other vCPUs of the VM may run.
    ///
    /// # Errors
    /// It is already mapped, or was not part of `pieces`.
    fn map_ram(&self, part: &Piece) -> Result<(), Error>;

    /// Makes a part of one block of the VM's RAM, which is mapped, read-only. Returns whether it is mapped as a whole, so that
    /// [`VmPart::permit_page`] needs a table ([`Arena::spare_table`]). No vCPU of the VM is loaded, and
    /// [`Platform::forget_translations`](super::Platform::forget_translations) follows.
    fn protect_ram(&self, part: &Piece) -> bool;

    /// Makes a page of read-only RAM writable, which may be so already. Returns false if no table is left to divide its block.
    /// A vCPU of the VM has taken a fault there on this CPU; others may run.
    fn permit_page(&self, page: u64) -> bool;

    /// [`VmPart::permit_page`] for a part of one block, which needs no table.
    fn permit_ram(&self, part: &Piece);

    /// Unmaps a part of the VM's RAM. Either a vCPU of the VM is loaded on this CPU, and [`VmPart::complete_unmap`] follows;
    /// or none is loaded on any CPU, and [`Platform::forget_translations`](super::Platform::forget_translations) follows.
    fn unmap_ram(&self, gpa: u64, size: u64);

    /// Invalidates translations of unmapped RAM on all CPUs.
    fn complete_unmap(&self);

    /// Frees memory that only a running VM needs. All vCPUs are off, or as for [`VmPart::reset`], which follows then.
    fn tear_down(&self);

    /// The VM has been turned off: its vCPUs are off, and it is not restarted now.
    fn ended(&self) {}

    /// Whether nothing outside of the VM accesses its memory any more after [`VmPart::reset`]: its RAM can be initialized.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Time at which the VM's PCI functions can be used again after [`VmPart::tear_down`], in ticks of the counter.
    fn functions_ready_at(&self) -> u64 {
        0
    }

    /// Starts the VM's PCI functions. All of its RAM is mapped, none of its vCPUs runs, and one is loaded on this
    /// CPU.
    fn start_functions(&self) {}
}
