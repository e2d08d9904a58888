//! L2's second stage: selected by L1's registers, and filled from L1's tables and Stile's.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_nested_arm::shadow::{GuestMemory, Need, Resolution, Stage2, Tlb, WalkFault, WalkFaultKind, resolve};
use stile_nested_arm::tlbi::{Scope, Tlbi};
use stile_nested_arm::vncr;
use stile_sysreg::SysReg;

use super::registers::Switched;
use super::shadows::{Current, HardwareTlb, HostTranslation, ReservedFrames};
use super::state::{Nested, Regime};
use super::tlbi;
use crate::address_space;
use crate::arch::aarch64::host::sysreg::{dsb_ish, read_sysreg};
use crate::arch::aarch64::vm::second_stage;
use crate::vm::Vm;

/// L1's physical memory, for one walk of L1's tables.
pub struct Memory<'a> {
    vm: &'a Vm,
    /// The walk reached untouched RAM: see [`Memory::is_incomplete`].
    incomplete: Cell<bool>,
}

impl<'a> Memory<'a> {
    /// L1's physical memory in the VM `vm`.
    pub fn new(vm: &'a Vm) -> Self {
        Self { vm, incomplete: Cell::new(false) }
    }

    /// Translates an L1 physical address by the VM's own second stage. `None` if nothing is mapped there, or if its RAM is not
    /// filled yet, which makes the walk [incomplete](Self::is_incomplete).
    fn below(&self, address: u64) -> Option<HostTranslation> {
        // RAM is mapped only after it was filled, so that mapped RAM needs no first touch.
        self.vm.arch.tables.translate(address).or_else(|| self.first_touch(address))
    }

    /// Fills and maps a bounded part of the block around an L1 address that L1 has not touched yet, but its guest or
    /// its tables refer to.
    #[cold]
    fn first_touch(&self, address: u64) -> Option<HostTranslation> {
        if self.vm.touch(address) {
            self.incomplete.set(true);
        }
        None
    }

    /// Whether the walk reached RAM that is being filled. Its result is void, and the guest retries.
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
        // SAFETY: a VM with an EL2 has neither PCI functions (refused by `Vm::new`) nor served devices (refused by crate
        // `blob`), so its second stage maps only its own memory, which is in the direct map for as long as the VM exists.
        // The mask aligns the address, so that the doubleword lies in one page. The load is atomic because guests write
        // their RAM concurrently.
        Some(unsafe { &*address_space::physical(below.output & !7).cast::<AtomicU64>() }.load(Ordering::Relaxed))
    }
}

impl Nested {
    /// L1's registers that determine its second stage: VTCR_EL2, VTTBR_EL2, HCR_EL2, SCTLR_EL2. At virtual EL2 the
    /// last one is SCTLR_EL1.
    fn stage2_registers(&self) -> [u64; 4] {
        let sctlr = match self.regime {
            Regime::El2 => read_sysreg!(SCTLR_EL12),
            Regime::Guest => self.el2[Switched::Sctlr as usize],
        };
        let page = &self.page;
        [page.get(vncr::VTCR_EL2), page.get(vncr::VTTBR_EL2), self.hcr(), sctlr]
    }

    /// Returns L1's second stage, decoded from its current registers.
    pub fn stage2(&self, vm: &Vm) -> Stage2 {
        let [vtcr, vttbr, hcr, sctlr] = self.stage2_registers();
        Stage2::decode(vtcr, vttbr, hcr, sctlr, vm.arch.pa_bits())
    }

    /// Loads L2's second stage. If there is no shadow for it, loads an empty one, never L1's: each of L2's accesses faults.
    pub fn load_shadow(&mut self, vm: &Vm, cpu: usize) {
        if !self.try_load_shadow(vm, cpu) {
            second_stage::leave();
        }
    }

    /// Loads L2's shadow. Returns false if it has none.
    fn try_load_shadow(&mut self, vm: &Vm, cpu: usize) -> bool {
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
        second_stage::load_table(context.vmid(), current.root, cpu);
        true
    }

    /// Selects the shadow for `registers`, which differ from those of the current one. `None` if no shadow is free.
    #[inline(never)]
    fn choose_shadow(&mut self, vm: &Vm, registers: [u64; 4]) -> Option<Current> {
        let stage2 = self.stage2(vm);
        if let Some(current) = &mut self.shadow
            && current.stage2 == stage2
        {
            // They differ only in bits that do not select a second stage, such as most of HCR_EL2.
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

    /// Loads the VM's own second stage, for virtual EL2.
    pub fn load_own_stage(&self, vm: &Vm, cpu: usize) {
        vm.arch.load_own_table(cpu);
    }

    /// Forgets the shadow, when the VM restarts or has ended. Does not release it:
    /// [`Shadows::reset`](super::shadows::Shadows::reset) resets the whole pool.
    pub fn forget_shadow(&mut self) {
        self.shadow = None;
    }

    /// Resolves L2's fault at `ipa`, where it `need`s these permissions, from L1's tables and Stile's. `None`: L2
    /// retries.
    pub fn resolve(&mut self, vm: &Vm, cpu: usize, ipa: u64, need: Need) -> Option<Unresolved> {
        let Some(current) = self.shadow else {
            // `load_shadow` found no free shadow: L1 sees the address as unmapped.
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
                    // Another vCPU of L1 has invalidated translations since the walk, possibly the one that it found.
                    return None;
                }
                let done = pool.map(current.id, &mut ReservedFrames, &mut tlb, &mapping);
                if let Some(context) = pool.context(current.id) {
                    second_stage::load_table(context.vmid(), current.root, cpu);
                }
                dsb_ish();
                // Beyond the range of a shadow: treated as unmapped by L1.
                done.err().map(|_| Unresolved::Forward(WalkFault { kind: WalkFaultKind::Translation, level: 0 }))
            }
        }
    }

    /// Applies a TLBI that L1 executes at virtual EL2 for its VMs: `what` to the shadows and, if it covers translations of the
    /// first stage, the instruction `reg` with `operand` to the processor's TLBs under the VMID of each shadow that L1's
    /// current VMID has.
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
                tlbi::first_stage(reg, operand);
            }
        }
        drop(pool);
        self.load_own_stage(vm, cpu);
    }
}

/// Reason for not resolving L2's access.
pub enum Unresolved {
    /// L1 has no translation, or denies the access.
    Forward(WalkFault),
    /// L1 maps it to this L1 physical address, which Stile does not map, or not with the permission needed: an emulated device,
    /// for example.
    Absent(u64),
}
