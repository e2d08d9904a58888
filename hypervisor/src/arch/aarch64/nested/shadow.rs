//! Second stages for L2: crate `stile-nested` makes them of L1's tables and Stile's; here they meet the hardware.

use core::cell::Cell;
use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_nested::shadow::{
    ContextId, Frames, GuestMemory, Invalidations, Need, Pool, Resolution, Shadow, Stage2, Tlb, WalkFault, WalkFaultKind, resolve,
};
use stile_nested::tlbi::{Scope, Tlbi};
use stile_nested::vncr;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Geometry, Invalidation, Maintenance, Stage2Permissions, TableMemory, TableRead, Translation};
use stile_paging::vmid::VmidSlot;
use stile_sched::lock::TicketLock;
use stile_sysreg::SysReg;

use super::registers::Switched;
use super::{Nested, Regime};
use crate::address_space;
use crate::arch::aarch64::host::bulk;
use crate::arch::aarch64::host::sysreg::{dsb_ish, isb, read_sysreg};
use crate::arch::aarch64::vm;
use crate::arena::Arena;
use crate::memory::TableFrames;
use crate::vm::Vm;

/// Shadows of one VM: one for each vCPU, and as many again for L2 VMs that are not running just now.
const SHADOWS: usize = 2 * stile_board::MAX_NESTED_VCPUS;

/// The shadows of a VM.
pub struct Shadows {
    /// Behind their lock.
    pool: TicketLock<Pool<SHADOWS>>,
    /// Counted under the lock, observed without it.
    invalidations: Invalidations,
}

/// Empty shadows for a VM with so many vCPUs, and the memory of all their tables.
///
/// # Errors
/// In words, if there is no memory.
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
    /// Empties them. No vCPU runs: the VM has ended, or starts anew.
    pub fn reset(&self) {
        self.pool.lock().reset(&mut ReservedFrames);
    }
}

/// The shadow that a vCPU has, and what it is of.
#[derive(Clone, Copy)]
pub struct Current {
    id: ContextId,
    stage2: Stage2,
    /// L1's registers that say so.
    registers: [u64; 4],
    root: u64,
}

impl Current {
    /// Whether L1's registers are those that it was chosen for.
    #[inline(always)]
    fn is_of(&self, registers: [u64; 4]) -> bool {
        // One by one: as arrays they would be compared by bytes.
        let differ = self.registers.iter().zip(registers).fold(0, |differ, (old, new)| differ | (old ^ new));
        differ == 0
    }
}

/// L1's physical memory, for one walk of L1's tables.
pub struct Memory<'a> {
    vm: &'a Vm,
    /// The walk met memory without contents: see [`Memory::is_incomplete`].
    incomplete: Cell<bool>,
}

impl<'a> Memory<'a> {
    /// The memory of a VM.
    pub fn new(vm: &'a Vm) -> Self {
        Self { vm, incomplete: Cell::new(false) }
    }

    /// Where an address of L1's leads.
    fn below(&self, address: u64) -> Option<Below> {
        // Mapped memory has been filled.
        self.vm.arch.translate(address).or_else(|| self.first_touch(address))
    }

    /// L1 has not touched an address yet that its guest or its tables lead to: does a part of what it takes to fill and map the block around it,
    /// no more, so that the exit is bounded.
    #[cold]
    fn first_touch(&self, address: u64) -> Option<Below> {
        if self.vm.touch(address) {
            self.incomplete.set(true);
        }
        None
    }

    /// Whether the walk ended at memory that is being filled. Its result is void: the guest executes its instruction again.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.get()
    }
}

impl GuestMemory for Memory<'_> {
    fn read(&self, address: u64) -> Option<u64> {
        let below = self.below(address)?;
        if !below.attributes.permissions.read {
            return None;
        }
        // SAFETY: the VM's own memory, in the direct map; guests write to it at the same time, so the access is atomic. The address is
        // a multiple of 8.
        Some(unsafe { &*address_space::physical(below.output & !7).cast::<AtomicU64>() }.load(Ordering::Relaxed))
    }
}

impl Nested {
    /// L1's registers that its second stage depends on: VTCR_EL2, VTTBR_EL2, HCR_EL2, SCTLR_EL2. At virtual EL2 the last one is EL1's.
    fn stage2_registers(&self) -> [u64; 4] {
        let sctlr = match self.regime {
            Regime::El2 => read_sysreg!(SCTLR_EL12),
            Regime::Guest => self.el2[Switched::Sctlr as usize],
        };
        let page = &self.page;
        [page.get(vncr::VTCR_EL2), page.get(vncr::VTTBR_EL2), self.hcr(), sctlr]
    }

    /// L1's second stage as its registers stand now.
    pub fn stage2(&self, vm: &Vm) -> Stage2 {
        let [vtcr, vttbr, hcr, sctlr] = self.stage2_registers();
        Stage2::decode(vtcr, vttbr, hcr, sctlr, vm.arch.pa_bits())
    }

    /// Puts L2's second stage onto the CPU. False if there is none to have.
    pub fn load_shadow(&mut self, vm: &Vm, cpu: usize) -> bool {
        let registers = self.stage2_registers();
        let current = match self.shadow {
            Some(current) if current.is_of(registers) => current,
            _ => match self.choose_shadow(vm, registers) {
                Some(current) => current,
                None => return false,
            },
        };
        let pool = vm.arch.shadows().pool.lock();
        let Some(context) = pool.context(current.id) else { return false };
        vm::load_table(context.vmid(), current.root, cpu);
        true
    }

    /// L1's registers are not those that the last shadow was chosen for.
    #[inline(never)]
    fn choose_shadow(&mut self, vm: &Vm, registers: [u64; 4]) -> Option<Current> {
        let stage2 = self.stage2(vm);
        if let Some(current) = &mut self.shadow
            && current.stage2 == stage2
        {
            // Most of HCR_EL2 has nothing to do with it.
            current.registers = registers;
            return Some(*current);
        }
        let mut pool = vm.arch.shadows().pool.lock();
        if let Some(old) = self.shadow.take() {
            pool.release(old.id);
        }
        let id = pool.acquire(&mut ReservedFrames, &stage2)?;
        let root = pool.context(id)?.table().root();
        self.shadow = Some(Current { id, stage2, registers, root });
        self.shadow
    }

    /// The VM's own second stage, for virtual EL2.
    pub fn load_own_stage(&self, vm: &Vm, cpu: usize) {
        vm.arch.load_own_table(cpu);
    }

    /// Lets go of the shadow: the VM starts anew, or has ended.
    pub fn forget_shadow(&mut self) {
        self.shadow = None;
    }

    /// L2 found no translation for `ipa`, or none that allows what it `need`s: looks for one in L1's tables and Stile's.
    /// `None`: it tries again.
    pub fn resolve(&mut self, vm: &Vm, cpu: usize, ipa: u64, need: Need) -> Option<Unresolved> {
        let Some(current) = self.shadow else {
            return Some(Unresolved::Forward(WalkFault { kind: WalkFaultKind::Translation, level: 0 }));
        };
        let shadows = vm.arch.shadows();
        let observed = shadows.invalidations.observe();
        let memory = Memory::new(vm);
        match resolve(&current.stage2, &memory, |address| memory.below(address), ipa, need) {
            _ if memory.is_incomplete() => None,
            Resolution::Forward(fault) => Some(Unresolved::Forward(fault)),
            Resolution::Absent { address } => Some(Unresolved::Absent(address)),
            Resolution::Map(mapping) => {
                let mut tlb = HardwareTlb::new(cpu);
                let mut pool = shadows.pool.lock();
                if !shadows.invalidations.is_current(observed) {
                    // Another vCPU of L1's has invalidated something since the walk, perhaps what was found.
                    return None;
                }
                let done = pool.map(current.id, &mut ReservedFrames, &mut tlb, &mapping);
                if let Some(context) = pool.context(current.id) {
                    vm::load_table(context.vmid(), current.root, cpu);
                }
                dsb_ish();
                // Beyond what a shadow can have: as if L1 had nothing there.
                done.err().map(|_| Unresolved::Forward(WalkFault { kind: WalkFaultKind::Translation, level: 0 }))
            }
        }
    }

    /// TLB maintenance of L1's that concerns the translations of its VMs. At virtual EL2.
    pub fn invalidate(&mut self, vm: &Vm, cpu: usize, what: &Tlbi, reg: SysReg, operand: u64) {
        let vmid = self.stage2(vm).vmid();
        let mut tlb = HardwareTlb::new(cpu);
        let shadows = vm.arch.shadows();
        let mut pool = shadows.pool.lock();
        shadows.invalidations.record();
        pool.invalidate(&mut ReservedFrames, &mut tlb, vmid, &what.scope);
        if let Scope::Vmid | Scope::Asid(_) | Scope::Va { .. } = what.scope {
            for context in pool.with_vmid(vmid) {
                tlb.select(context.vmid(), context.table().root());
                super::tlbi::first_stage(reg, operand);
            }
        }
        drop(pool);
        self.load_own_stage(vm, cpu);
    }
}

/// Why L2's access was not resolved.
pub enum Unresolved {
    /// L1 has nothing there, or does not allow it.
    Forward(WalkFault),
    /// It leads to this physical address of L1's, where there is no memory.
    Absent(u64),
}

/// The frames of shadow tables, in the direct map.
struct ReservedFrames;

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
        // SAFETY: a page of the VM's reserve, in the direct map, which no table refers to.
        unsafe { bulk::zero(address_space::physical(frame), PAGE_SIZE as usize) };
    }
}

/// Invalidations by address beyond which one of everything takes their place.
const BY_ADDRESS: u32 = 32;

/// This CPU's way to all TLBs: instructions that take the VMID from VTTBR_EL2.
struct HardwareTlb {
    cpu: usize,
    /// Invalidations by address since the last completion.
    count: u32,
}

impl HardwareTlb {
    fn new(cpu: usize) -> Self {
        Self { cpu, count: 0 }
    }
}

impl Tlb for HardwareTlb {
    fn select(&mut self, vmid: &VmidSlot, root: u64) {
        vm::load_table(vmid, root, self.cpu);
        // The register write must be done before TLB instructions take the VMID from it.
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
        // SAFETY: forgetting translations is always right. The barrier: the table must be seen changed by walks that come after.
        unsafe { core::arch::asm!("dsb ishst", "tlbi ipas2e1is, {}", in(reg) page, options(nostack, preserves_flags)) };
    }

    fn invalidate_all(&mut self) {
        self.count = u32::MAX;
    }

    fn complete(&mut self) {
        if self.count > BY_ADDRESS {
            // SAFETY: as above.
            unsafe { core::arch::asm!("dsb ishst", "tlbi vmalls12e1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        } else {
            // SAFETY: as above. Entries that combine both stages are not found by an intermediate address.
            unsafe { core::arch::asm!("dsb ish", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        }
        self.count = 0;
    }
}

/// What the VM's own second stage has for an address.
pub type Below = Translation<Stage2Permissions>;
