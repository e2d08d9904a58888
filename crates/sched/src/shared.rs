//! State of a CPU that others read without a lock.

use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};

use crate::id::{SharedCpuSet, SharedVmSet, VMS};
use crate::vm::Vm;
use crate::{CPUS, CpuId, CpuSet};

/// CPUs of a group.
const GROUP: usize = 8;

/// State that no CPU's lock guards. A CPU's own part is written by the holder of its lock. What others read of it without
/// the lock is a hint; they take the lock, and look again.
pub(crate) struct Shared {
    /// CPUs that run vCPUs. Written with all locks held, as the next five.
    pub(crate) online: SharedCpuSet,
    /// Number of groups up to the last one with a CPU online.
    groups_online: AtomicUsize,
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
    affinities: [Affinity; VMS],
    vms: [Vm; VMS],
}

/// The CPUs of a VM's vCPUs that may use more than one. Written as [`Shared::barred`], or before the VM's vCPUs exist.
#[repr(align(64))]
pub(crate) struct Affinity {
    /// Those that are not barred, unless all are.
    pub(crate) usable: SharedCpuSet,
    /// All.
    pub(crate) configured: SharedCpuSet,
}

/// Sets of CPUs of a group: bit n is the group's CPU n.
#[repr(align(64))]
struct Group {
    /// Online CPUs that run no vCPU and have none queued.
    idle: AtomicU8,
    /// CPUs with a vCPU loaded.
    holding: AtomicU8,
    /// CPUs for which a vCPU waits that may use another CPU.
    offering: AtomicU8,
}

/// The load of a CPU.
#[repr(align(64))]
pub(crate) struct Load {
    /// Waiting and running vCPUs of the VMs in `present`.
    vcpus: AtomicUsize,
    /// Whether `usable` is not empty; the CPU's bit in [`Group::offering`] is the same.
    has_usable: AtomicBool,
    /// At least the other CPUs that the waiting vCPUs may use; empty if none waits.
    usable: SharedCpuSet,
    /// VMs with a vCPU waiting or running here, not throttled here. If there are several, they compete.
    pub(crate) present: SharedVmSet,
    /// Number of vCPUs of each VM that wait or run here.
    counts: [AtomicU16; VMS],
}

impl Shared {
    pub(crate) const fn new() -> Self {
        Self {
            online: SharedCpuSet::new(),
            groups_online: AtomicUsize::new(0),
            barred: SharedCpuSet::new(),
            policed: AtomicBool::new(false),
            capped: SharedVmSet::new(),
            known: SharedVmSet::new(),
            groups: [const { Group { idle: AtomicU8::new(0), holding: AtomicU8::new(0), offering: AtomicU8::new(0) } }; CPUS / GROUP],
            loads: [const { Load::new() }; CPUS],
            affinities: [const { Affinity { usable: SharedCpuSet::new(), configured: SharedCpuSet::new() } }; VMS],
            vms: [const { Vm::unused() }; VMS],
        }
    }

    /// Memory of the loads of the first `cpus` CPUs: offsets in bytes.
    pub(crate) const fn of_loads(cpus: usize) -> Range<usize> {
        let start = offset_of!(Self, loads);
        start..start + cpus * size_of::<Load>()
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

    /// The affinity of a VM's vCPUs that may use several CPUs.
    pub(crate) fn affinity(&self, vm: usize) -> &Affinity {
        &self.affinities[vm & (VMS - 1)]
    }

    /// Adds a CPU to those online. The caller holds all locks.
    pub(crate) fn add_online(&self, cpu: CpuId) {
        let mut online = self.online.get();
        online.set(cpu, true);
        self.online.set(&online);
        self.groups_online.fetch_max(cpu.index() / GROUP + 1, Ordering::Relaxed);
    }

    /// Whether a vCPU that may use another CPU waits for any CPU; only a hint. Reads one byte for eight CPUs.
    #[inline]
    pub(crate) fn is_any_offering(&self) -> bool {
        let groups = self.groups.iter().take(self.groups_online.load(Ordering::Relaxed));
        groups.into_iter().any(|group| group.offering.load(Ordering::Relaxed) != 0)
    }

    /// The idle CPUs of `among`.
    pub(crate) fn idle(&self, among: &CpuSet) -> CpuSet {
        self.collect(among, |group| &group.idle)
    }

    /// Whether a CPU is idle.
    pub(crate) fn is_idle(&self, cpu: CpuId) -> bool {
        let group = &self.groups[cpu.index() / GROUP];
        group.idle.load(Ordering::Relaxed) >> (cpu.index() % GROUP) & 1 != 0
    }

    /// Whether a CPU is idle that a VM's vCPUs may use.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_any_idle(&self, vm: usize) -> bool {
        !self.idle(&self.affinity(vm).usable.get()).is_empty()
    }

    /// The CPUs of `among` that have a vCPU loaded.
    pub(crate) fn holding(&self, among: &CpuSet) -> CpuSet {
        self.collect(among, |group| &group.holding)
    }

    /// The CPUs of `among` for which a vCPU waits that may use another CPU; only a hint.
    pub(crate) fn offering(&self, among: &CpuSet) -> CpuSet {
        self.collect(among, |group| &group.offering)
    }

    /// Reads the groups that have CPUs in `among`.
    fn collect(&self, among: &CpuSet, of: impl Fn(&Group) -> &AtomicU8) -> CpuSet {
        let mut words = *among.words();
        for (word, groups) in words.iter_mut().zip(self.groups.chunks_exact(64 / GROUP)) {
            let (mut rest, mut found) = (*word, 0);
            while rest != 0 {
                let group = rest.trailing_zeros() as usize / GROUP;
                found |= u64::from(of(&groups[group]).load(Ordering::Relaxed)) << (group * GROUP);
                rest &= !(0xff << (group * GROUP));
            }
            *word &= found;
        }
        CpuSet::from_words(words)
    }

    #[inline]
    pub(crate) fn set_idle(&self, cpu: CpuId, member: bool) {
        Self::change(&self.groups[cpu.index() / GROUP].idle, cpu, member);
    }

    #[inline]
    pub(crate) fn set_holding(&self, cpu: CpuId, member: bool) {
        Self::change(&self.groups[cpu.index() / GROUP].holding, cpu, member);
    }

    /// Adds other CPUs that a vCPU which begins to wait for `cpu` may use. Returns whether there are more now.
    pub(crate) fn add_usable(&self, cpu: CpuId, cpus: &CpuSet) -> bool {
        let is_more = self.load(cpu).usable.add(cpus);
        if is_more {
            self.set_offering(cpu, true);
        }
        is_more
    }

    /// Sets the other CPUs that the vCPUs which wait for `cpu` may use.
    pub(crate) fn set_usable(&self, cpu: CpuId, cpus: &CpuSet) {
        self.load(cpu).usable.set(cpus);
        self.set_offering(cpu, !cpus.is_empty());
    }

    /// No vCPU waits for `cpu`.
    #[inline]
    pub(crate) fn clear_usable(&self, cpu: CpuId) {
        if self.load(cpu).has_usable() {
            self.set_usable_empty(cpu);
        }
    }

    #[cold]
    #[inline(never)]
    fn set_usable_empty(&self, cpu: CpuId) {
        self.set_usable(cpu, &CpuSet::EMPTY);
    }

    fn set_offering(&self, cpu: CpuId, member: bool) {
        self.load(cpu).has_usable.store(member, Ordering::Relaxed);
        Self::change(&self.groups[cpu.index() / GROUP].offering, cpu, member);
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
            has_usable: AtomicBool::new(false),
            usable: SharedCpuSet::new(),
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

    /// Whether a vCPU that waits here may use another CPU; only a hint.
    #[inline]
    pub(crate) fn has_usable(&self) -> bool {
        self.has_usable.load(Ordering::Relaxed)
    }

    /// The other CPUs that the waiting vCPUs may use, or more.
    pub(crate) fn usable(&self) -> CpuSet {
        self.usable.get()
    }

    /// Whether a vCPU that waits here may use `cpu`, another CPU; only a hint.
    pub(crate) fn is_usable_by(&self, cpu: CpuId) -> bool {
        self.usable.contains(cpu)
    }
}
