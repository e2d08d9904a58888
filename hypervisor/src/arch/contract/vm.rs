//! The architecture's part of a VM.

use stile_blob::Techniques;
use stile_paging::frames::Piece;
use stile_paging::table::Error;

use crate::arena::Arena;

/// Second stage, interrupt controller, and what else the architecture has for each VM. Shared by all CPUs.
pub trait VmPart: Sized {
    /// The part of VM `number`, whose RAM is in `pieces`, of which nothing is mapped yet. Reserves all memory that the VM will need, so that
    /// [`VmPart::map_ram`] finds it; all of it is of the VM's `arena`, which is given back when the VM is gone.
    ///
    /// # Errors
    /// In words: what the CPU can't do, or for what there is no memory.
    fn new(
        number: usize,
        config: &stile_blob::Vm<'_>,
        pieces: &[Piece],
        techniques: Techniques,
        arena: &'static Arena,
    ) -> Result<Self, &'static str>;

    /// The state after a reset. All vCPUs are off.
    fn reset(&self);

    /// Maps a part of the VM's memory, which has its contents. Any CPU; others of the VM's vCPUs may run.
    ///
    /// # Errors
    /// It is mapped already, or was not there when the VM was made.
    fn map_ram(&self, part: &Piece) -> Result<(), Error>;

    /// Unmaps a part of the VM's memory. A vCPU of it is loaded on this CPU, and [`VmPart::complete_unmap`] follows.
    fn unmap_ram(&self, gpa: u64, size: u64);

    /// When this returns, no CPU has translations of what was unmapped.
    fn complete_unmap(&self);

    /// Gives back memory that only a running VM needs. All vCPUs are off.
    fn tear_down(&self);

    /// When the VM's PCI functions can be used again after [`VmPart::tear_down`], in ticks of the counter.
    fn functions_ready_at(&self) -> u64 {
        0
    }

    /// Lets the VM's PCI functions access its memory, all of which is mapped. A vCPU of the VM, of which none runs, is loaded on this CPU.
    fn start_functions(&self) {}
}
