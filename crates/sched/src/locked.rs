//! The scheduler with the locks of some CPUs, and access to what they guard.

use core::ops::{Index, IndexMut};
use core::sync::atomic::Ordering;

use crate::cpu::Cpu;
use crate::deadline::{Node, Sleepers};
use crate::id::VmSet;
use crate::shared::{Load, Shared};
use crate::table::Locks;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::{CpuId, CpuSet, StartError, State, VcpuId};

/// The scheduler, with the locks of some CPUs held: at least that of the CPU, or of the vCPU, whose operation is called.
/// Operations take other CPUs' locks if they are free, and do without otherwise.
#[must_use = "dropping it unlocks"]
pub struct Locked<'s> {
    pub(crate) held: Locks<'s>,
    /// Whether this CPU may have left work undone: another CPU's lock was not free, or more vCPUs could migrate.
    pub(crate) missed: bool,
}

impl Locked<'_> {
    /// State that no lock guards.
    #[inline]
    pub(crate) fn shared(&self) -> &'_ Shared {
        self.held.shared()
    }

    #[inline]
    pub(crate) fn policed(&self) -> bool {
        self.shared().policed()
    }

    #[inline]
    pub(crate) fn capped(&self) -> VmSet {
        self.shared().capped.get()
    }

    pub(crate) fn online(&self) -> CpuSet {
        self.shared().online.get()
    }

    pub(crate) fn barred(&self) -> CpuSet {
        self.shared().barred.get()
    }

    #[inline]
    pub(crate) fn load_of(&self, cpu: CpuId) -> &Load {
        self.shared().load(cpu)
    }

    #[inline]
    pub(crate) fn vm(&self, vm: usize) -> &Vm {
        self.shared().vm(vm)
    }

    /// The CPU to which a vCPU belongs.
    #[inline]
    pub(crate) fn home(&self, vcpu: VcpuId) -> CpuId {
        CpuId::new(self.held.home(vcpu.index())).unwrap_or(CpuId::BOOT)
    }

    /// Whether a CPU's lock is held.
    pub fn holds(&self, cpu: CpuId) -> bool {
        self.held.holds(cpu.index())
    }

    /// Takes the lock of another CPU, if it is free. Whether it is held.
    pub(crate) fn also(&mut self, cpu: CpuId) -> bool {
        self.held.also(cpu.index())
    }

    /// Takes the lock of another CPU, if it is free and the CPU idle.
    pub(crate) fn also_idle(&mut self, cpu: CpuId) -> bool {
        self.also(cpu) && self.shared().is_idle(cpu)
    }

    /// Makes a vCPU that is not loaded belong to another CPU, whose lock is held.
    pub(crate) fn move_to(&mut self, vcpu: VcpuId, cpu: CpuId) {
        if self.home(vcpu) != cpu {
            // Its CPU keeps the time for it.
            Sleepers::cancel_deadline(self, vcpu);
            self.held.move_home(vcpu.index(), cpu.index());
        }
    }

    /// See [`Scheduler::configure`](crate::Scheduler::configure). Returns false, and has changed nothing, if the lock of the CPU to
    /// which the vCPU will belong is not free.
    pub(crate) fn configure(&mut self, vcpu: VcpuId, cpus: CpuSet) -> Result<bool, StartError> {
        let online = cpus.and(&self.online());
        let it = &self[vcpu];
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        // With any lock held, no CPU comes online or is barred.
        let (only, usable) = (online.only(), self.without_barred(&online));
        let last = it.last.filter(|last| usable.contains(*last));
        let home = last.or(usable.first()).ok_or(StartError::NoCpu)?;
        if !self.also(home) {
            return Ok(false);
        }
        let it = &mut self[vcpu];
        (it.only, it.exists, it.last) = (only, true, last);
        self.move_to(vcpu, home);
        if only.is_none() {
            let affinity = self.shared().affinity(vcpu.vm().into());
            affinity.configured.set(&online);
            affinity.usable.set(&usable);
        }
        let vm = self.vm(vcpu.vm().into());
        if vm.weight() == 0 {
            vm.reset();
        }
        vm.vcpus.fetch_max(u16::from(vcpu.vcpu()) + 1, Ordering::Relaxed);
        Ok(true)
    }

    /// The CPUs that a vCPU may use: those of its affinity that are not barred, unless all are.
    pub(crate) fn usable_by(&self, vcpu: VcpuId) -> CpuSet {
        let it = &self[vcpu];
        match it.only {
            Some(only) => only.into(),
            None if it.exists => self.shared().affinity(vcpu.vm().into()).usable.get(),
            None => CpuSet::EMPTY,
        }
    }

    /// Whether a vCPU, which exists, may use a CPU.
    pub(crate) fn may_use(&self, vcpu: VcpuId, cpu: CpuId) -> bool {
        match self[vcpu].only {
            Some(only) => only == cpu,
            None => self.shared().affinity(vcpu.vm().into()).usable.contains(cpu),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_usable_by(&self, cpu: CpuId, vcpu: VcpuId) -> bool {
        self.shared().add_usable(cpu, &self.usable_by(vcpu).except(cpu))
    }

    /// Appends a vCPU to its VM's list on a CPU. Returns whether it may use a CPU that those waiting there before may not.
    pub(crate) fn push(&mut self, cpu: CpuId, vcpu: VcpuId) -> bool {
        let is_more = self[vcpu].only != Some(cpu) && self.add_usable_by(cpu, vcpu);
        let (it, mut vcpus) = self.held.split(cpu.index());
        it.queue.push(&mut vcpus, vcpu);
        is_more
    }

    /// Removes and returns the vCPU that runs next on a CPU.
    #[inline(always)]
    pub(crate) fn pop<const POLICED: bool>(&mut self, cpu: CpuId) -> Option<VcpuId> {
        let (it, mut vcpus) = self.held.split(cpu.index());
        it.queue.pop::<POLICED>(&mut vcpus)
    }

    /// Removes a waiting vCPU from its VM's list on a CPU.
    pub(crate) fn remove(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let (it, mut vcpus) = self.held.split(cpu.index());
        it.queue.remove(&mut vcpus, vcpu);
    }

    // Deadlines of sleeping vCPUs, which belong to the CPU that keeps the time for them.

    /// Sets the deadline of a vCPU that belongs to this CPU: it runs or ran here last.
    #[inline]
    pub fn set_deadline(&mut self, cpu: CpuId, vcpu: VcpuId, at: u64) {
        debug_assert!(self.home(vcpu) == cpu, "another CPU keeps its time");
        Sleepers::set_deadline(self, cpu, vcpu, at);
    }

    /// Removes a vCPU's deadline, if it has one.
    #[inline]
    pub fn cancel_deadline(&mut self, vcpu: VcpuId) {
        Sleepers::cancel_deadline(self, vcpu);
    }

    /// Takes a vCPU whose deadline, kept by this CPU, is at or before `now`: the one with the earliest.
    #[inline]
    pub fn expired(&mut self, cpu: CpuId, now: u64) -> Option<VcpuId> {
        Sleepers::expired(self, cpu, now)
    }

    /// The earliest deadline that this CPU keeps, to program its timer with.
    #[inline]
    pub fn earliest(&self, cpu: CpuId) -> Option<u64> {
        Sleepers::earliest(self, cpu)
    }
}

impl Index<CpuId> for Locked<'_> {
    type Output = Cpu;

    #[inline]
    fn index(&self, cpu: CpuId) -> &Cpu {
        self.held.shard(cpu.index())
    }
}

impl IndexMut<CpuId> for Locked<'_> {
    #[inline]
    fn index_mut(&mut self, cpu: CpuId) -> &mut Cpu {
        self.held.shard_mut(cpu.index())
    }
}

impl Index<VcpuId> for Locked<'_> {
    type Output = Vcpu;

    #[inline]
    fn index(&self, vcpu: VcpuId) -> &Vcpu {
        self.held.item(vcpu.index())
    }
}

impl IndexMut<VcpuId> for Locked<'_> {
    #[inline]
    fn index_mut(&mut self, vcpu: VcpuId) -> &mut Vcpu {
        self.held.item_mut(vcpu.index())
    }
}

impl Sleepers for Locked<'_> {
    #[inline]
    fn first(&self, cpu: CpuId) -> Option<VcpuId> {
        self[cpu].first_sleeper
    }

    #[inline]
    fn set_first(&mut self, cpu: CpuId, first: Option<VcpuId>) {
        self[cpu].first_sleeper = first;
    }

    #[inline]
    fn node(&self, vcpu: VcpuId) -> &Node {
        self.held.other(vcpu.index())
    }

    #[inline]
    fn node_mut(&mut self, vcpu: VcpuId) -> &mut Node {
        self.held.other_mut(vcpu.index())
    }
}
