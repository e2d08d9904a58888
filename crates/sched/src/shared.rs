//! State of a CPU that others read without a lock.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use crate::id::{SharedCpuSet, SharedVmSet, VMS};
use crate::vm::Vm;
use crate::{CPUS, CpuId, CpuSet};

/// CPUs of a group.
const GROUP: usize = 8;

/// State that no CPU's lock guards. A CPU's own part is written by the holder of its lock. What others read of it without
/// the lock is a hint; they take the lock, and look again.
pub(crate) struct Shared {
    /// CPUs that run vCPUs. Written with all locks held, as the next four.
    pub(crate) online: SharedCpuSet,
    /// CPUs that do not answer.
    pub(crate) barred: SharedCpuSet,
    /// Whether there are several VMs, or caps. With a single VM no shares are accounted.
    pub(crate) policed: AtomicBool,
    /// VMs that have a cap.
    pub(crate) capped: SharedVmSet,
    /// VMs with a configured share.
    pub(crate) known: SharedVmSet,
    /// Sets of CPUs, divided so that no cache line is written by all of them.
    groups: [Group; CPUS / GROUP],
    loads: [Load; CPUS],
    vms: [Vm; VMS],
}

/// Sets of CPUs of a group: bit n is the group's CPU n.
#[repr(align(64))]
struct Group {
    /// Online CPUs that run no vCPU and have none queued.
    idle: AtomicU8,
    /// CPUs with a vCPU loaded.
    holding: AtomicU8,
}

/// The load of a CPU.
#[repr(align(64))]
pub(crate) struct Load {
    /// Waiting and running vCPUs of the VMs in `present`.
    vcpus: AtomicUsize,
    /// At least the CPUs that the waiting vCPUs may use; empty if none waits.
    usable: AtomicU64,
    /// VMs with a vCPU waiting or running here, not throttled here. If there are several, they compete.
    pub(crate) present: SharedVmSet,
    /// Number of vCPUs of each VM that wait or run here.
    counts: [AtomicU16; VMS],
}

impl Shared {
    pub(crate) const fn new() -> Self {
        Self {
            online: SharedCpuSet::new(),
            barred: SharedCpuSet::new(),
            policed: AtomicBool::new(false),
            capped: SharedVmSet::new(),
            known: SharedVmSet::new(),
            groups: [const { Group { idle: AtomicU8::new(0), holding: AtomicU8::new(0) } }; CPUS / GROUP],
            loads: [const { Load::new() }; CPUS],
            vms: [const { Vm::unused() }; VMS],
        }
    }

    #[inline]
    pub(crate) fn policed(&self) -> bool {
        self.policed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn vm(&self, vm: usize) -> &Vm {
        &self.vms[vm & (VMS - 1)]
    }

    pub(crate) fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter()
    }

    #[inline]
    pub(crate) fn load(&self, cpu: CpuId) -> &Load {
        &self.loads[cpu.index()]
    }

    /// The idle CPUs of `among`.
    #[inline]
    pub(crate) fn idle(&self, among: CpuSet) -> CpuSet {
        self.collect(among, |group| &group.idle)
    }

    /// The CPUs of `among` that have a vCPU loaded.
    pub(crate) fn holding(&self, among: CpuSet) -> CpuSet {
        self.collect(among, |group| &group.holding)
    }

    /// Reads the groups that have CPUs in `among`.
    #[inline]
    fn collect(&self, among: CpuSet, of: impl Fn(&Group) -> &AtomicU8) -> CpuSet {
        let (mut rest, mut found) = (among.bits(), 0);
        while rest != 0 {
            let first = rest.trailing_zeros() as usize & (CPUS - 1) & !(GROUP - 1);
            found |= u64::from(of(&self.groups[first / GROUP]).load(Ordering::Relaxed)) << first;
            rest &= !(0xff << first);
        }
        among.and(CpuSet::from_bits(found))
    }

    #[inline]
    pub(crate) fn set_idle(&self, cpu: CpuId, member: bool) {
        Self::change(&self.groups[cpu.index() / GROUP].idle, cpu, member);
    }

    #[inline]
    pub(crate) fn set_holding(&self, cpu: CpuId, member: bool) {
        Self::change(&self.groups[cpu.index() / GROUP].holding, cpu, member);
    }

    /// Writes only what changes.
    #[inline]
    fn change(set: &AtomicU8, cpu: CpuId, member: bool) {
        let bit = 1 << (cpu.index() % GROUP);
        if (set.load(Ordering::Relaxed) & bit != 0) != member {
            Self::flip(set, bit);
        }
    }

    #[inline(never)]
    fn flip(set: &AtomicU8, bit: u8) {
        // The CPU's bit is written only with its lock held, others' bits concurrently.
        set.fetch_xor(bit, Ordering::Relaxed);
    }
}

impl Load {
    const fn new() -> Self {
        Self {
            vcpus: AtomicUsize::new(0),
            usable: AtomicU64::new(0),
            present: SharedVmSet::new(),
            counts: [const { AtomicU16::new(0) }; VMS],
        }
    }

    /// Waiting and running vCPUs of unthrottled VMs.
    #[inline]
    pub(crate) fn get(&self) -> usize {
        self.vcpus.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn add(&self, vcpus: usize) {
        self.vcpus.store(self.get() + vcpus, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn sub(&self, vcpus: usize) {
        self.vcpus.store(self.get() - vcpus, Ordering::Relaxed);
    }

    /// Number of a VM's vCPUs that wait or run here.
    #[inline]
    pub(crate) fn count(&self, vm: usize) -> u16 {
        self.counts[vm & (VMS - 1)].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_count(&self, vm: usize, count: u16) {
        self.counts[vm & (VMS - 1)].store(count, Ordering::Relaxed);
    }

    /// Whether several VMs want this CPU.
    #[inline]
    pub(crate) fn competing(&self) -> bool {
        self.present.get().is_several()
    }

    /// The CPUs that the waiting vCPUs may use, or more.
    #[inline]
    pub(crate) fn usable(&self) -> CpuSet {
        CpuSet::from_bits(self.usable.load(Ordering::Relaxed))
    }

    /// Whether a vCPU that waits here may use a CPU; only a hint.
    #[inline]
    pub(crate) fn is_usable_by(&self, cpu: CpuId) -> bool {
        self.usable().contains(cpu)
    }

    /// Adds the CPUs that a vCPU which begins to wait may use. Returns whether there are more now.
    #[inline]
    pub(crate) fn add_usable(&self, cpus: CpuSet) -> bool {
        let usable = self.usable.load(Ordering::Relaxed);
        let is_more = cpus.bits() & !usable != 0;
        if is_more {
            self.usable.store(usable | cpus.bits(), Ordering::Relaxed);
        }
        is_more
    }

    /// Sets the CPUs that the waiting vCPUs may use.
    pub(crate) fn set_usable(&self, cpus: CpuSet) {
        self.usable.store(cpus.bits(), Ordering::Relaxed);
    }

    /// No vCPU waits.
    #[inline]
    pub(crate) fn clear_usable(&self) {
        if self.usable.load(Ordering::Relaxed) != 0 {
            self.usable.store(0, Ordering::Relaxed);
        }
    }
}
