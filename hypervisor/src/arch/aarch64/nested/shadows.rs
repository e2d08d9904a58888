//! Shadow second stages: the hardware side of crate `stile-nested-arm`.

use core::convert::Infallible;

use stile_lock::TicketLock;
use stile_nested_arm::shadow::{ContextId, Frames, Invalidations, Pool, Shadow, Stage2, Tlb};
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Geometry, Invalidation, Maintenance, Stage2Permissions, TableMemory, TableRead, Translation};
use stile_paging::vmid::VmidSlot;

use crate::address_space;
use crate::arch::aarch64::host::bulk;
use crate::arch::aarch64::host::sysreg::isb;
use crate::arch::aarch64::vm::second_stage;
use crate::arena::Arena;
use crate::memory::TableFrames;

/// Number of shadows of a VM, whatever its number of vCPUs: one for each possible vCPU, and as many for L2 VMs that do not run.
const SHADOWS: usize = 2 * stile_board::MAX_NESTED_VCPUS;

/// The shadows of a VM.
pub struct Shadows {
    /// The shadows, and the frames reserved for their tables.
    pub pool: TicketLock<Pool<SHADOWS>>,
    /// Counters, updated under the lock and read without it.
    pub invalidations: Invalidations,
}

/// Creates empty shadows for a VM with this number of vCPUs, and reserves the memory of their tables.
///
/// # Errors
/// A description: no memory is left.
pub fn new(geometry: Geometry, vcpus: usize, arena: &'static Arena) -> Result<Shadows, &'static str> {
    if vcpus > stile_board::MAX_NESTED_VCPUS {
        return Err("a VM with an EL2 has at most 8 vCPUs");
    }
    const NO_MEMORY: &str = "a nested VM's shadow tables (4 MiB for each of its vCPUs) do not fit into this board's memory";
    let mut roots = [0; SHADOWS];
    for root in &mut roots {
        *root = arena.allocate_pages(PAGE_SIZE)?;
    }
    let reserved = arena.reserve(stile_board::SHADOW_MEMORY * vcpus as u64).map_err(|_| NO_MEMORY)?;
    let format = Shadow(stile_paging::table::Stage2 { forced_write_back: false });
    let pool = Pool::new(format, geometry, roots, reserved).map_err(|_| "a shadow's root out of reach")?;
    Ok(Shadows { pool: TicketLock::new(pool), invalidations: Invalidations::new() })
}

impl Shadows {
    /// Empties the shadows. No vCPU runs: the VM has ended, or restarts.
    pub fn reset(&self) {
        self.pool.lock().reset(&mut ReservedFrames);
    }
}

/// The shadow of a vCPU, and its origin.
#[derive(Clone, Copy)]
pub struct Current {
    /// Index in the pool.
    pub id: ContextId,
    /// L1's second stage.
    pub stage2: Stage2,
    /// L1's registers that selected it.
    pub registers: [u64; 4],
    /// Its root.
    pub root: u64,
}

impl Current {
    /// Whether L1's registers still select it.
    #[inline(always)]
    pub fn is_of(&self, registers: [u64; 4]) -> bool {
        // One by one: arrays would be compared by memcmp.
        let differ = self.registers.iter().zip(registers).fold(0, |differ, (old, new)| differ | (old ^ new));
        differ == 0
    }
}

/// Frames of shadow tables, in the direct map.
pub struct ReservedFrames;

impl TableRead for ReservedFrames {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        TableFrames.read(table, index)
    }
}

impl Frames for ReservedFrames {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        TableFrames.write(table, index, descriptor);
    }

    fn zero(&mut self, frame: u64) {
        // SAFETY: a page of the VM's reserve, in the direct map, to which no table refers.
        unsafe { bulk::zero(address_space::physical(frame), PAGE_SIZE as usize) };
    }
}

/// Number of invalidations by address beyond which everything is invalidated.
const BY_ADDRESS: u32 = 32;

/// Broadcast TLB invalidation for the VMID in VTTBR_EL2.
pub struct HardwareTlb {
    cpu: usize,
    /// Invalidations by address since the last completion.
    count: u32,
}

impl HardwareTlb {
    /// For CPU `cpu`, the caller.
    pub fn new(cpu: usize) -> Self {
        Self { cpu, count: 0 }
    }
}

impl Tlb for HardwareTlb {
    fn select(&mut self, vmid: &VmidSlot, root: u64) {
        second_stage::load_table(vmid, root, self.cpu);
        // The register write must complete before TLB instructions use its VMID.
        isb();
    }
}

impl Maintenance for HardwareTlb {
    fn invalidate(&mut self, invalidation: Invalidation) {
        self.count = self.count.saturating_add(1);
        if self.count > BY_ADDRESS {
            return;
        }
        let page = invalidation.address >> 12;
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again. The barrier makes table changes visible to later walks.
        unsafe { core::arch::asm!("dsb ishst", "tlbi ipas2e1is, {}", in(reg) page, options(nostack, preserves_flags)) };
    }

    fn invalidate_all(&mut self) {
        self.count = u32::MAX;
    }

    fn complete(&mut self) {
        if self.count > BY_ADDRESS {
            // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
            // its tables again.
            unsafe { core::arch::asm!("dsb ishst", "tlbi vmalls12e1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        } else {
            // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
            // its tables again. The first barrier completes the invalidations by IPA; the second TLBI is for combined
            // entries of both stages, which they do not cover.
            unsafe { core::arch::asm!("dsb ish", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        }
        self.count = 0;
    }
}

/// A translation by the VM's own second stage.
pub type HostTranslation = Translation<Stage2Permissions>;
