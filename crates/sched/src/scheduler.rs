//! The scheduler, with a lock for each CPU.

use core::sync::atomic::Ordering;

use crate::id::VMS;
use crate::shared::Shared;
use crate::table::Table;
use crate::vcpu::Times;
use crate::{CpuId, CpuSet, Locked, Placement, StartError, State, Switch, VcpuId};

/// The schedule: running and waiting vCPUs of all CPUs. See the crate's documentation for the policy, the locks and the
/// caller's obligations.
///
/// Times are ticks of a counter shared by all CPUs. They may be slightly out of order, because CPUs read the
/// counter before they wait for a lock.
pub struct Scheduler {
    pub(crate) table: Table,
}

impl Scheduler {
    /// A scheduler without CPUs and vCPUs. All of it is zero.
    pub const fn new() -> Self {
        Self { table: Table::new(Shared::new()) }
    }

    /// Says how many CPUs the machine has, before any of them comes online. Memory for other CPUs is not accessed then.
    pub fn setup(&self, cpus: usize) {
        self.table.restrict(cpus);
    }

    // Locks. The caller holds none; those it gets are released when the value is dropped.

    /// Waits for a CPU's lock.
    #[inline]
    pub fn lock(&self, cpu: CpuId) -> Locked<'_> {
        Locked { held: self.table.lock(cpu.index()), missed: false }
    }

    /// Waits for the lock of the CPU to which a vCPU belongs.
    #[inline]
    pub fn lock_vcpu(&self, vcpu: VcpuId) -> Locked<'_> {
        Locked { held: self.table.lock_home(vcpu.index()), missed: false }
    }

    /// Waits for the locks of all CPUs of the machine: for what happens as VMs come and go.
    pub fn lock_all(&self) -> Locked<'_> {
        Locked { held: self.table.whole(), missed: false }
    }

    /// Whether a CPU's lock is held or waited for; only a hint.
    pub fn is_locked(&self, cpu: CpuId) -> bool {
        self.table.is_locked(cpu.index())
    }

    /// The CPU to which a vCPU belongs; without its lock only a hint.
    #[inline]
    pub fn home(&self, vcpu: VcpuId) -> CpuId {
        CpuId::new(self.table.home(vcpu.index())).unwrap_or(CpuId::BOOT)
    }

    // Configuration.

    /// Brings a CPU online. It starts idle, with nothing loaded.
    pub fn cpu_online(&self, cpu: CpuId) {
        let mut all = self.lock_all();
        all.shared().add_online(cpu);
        all[cpu].queue.deadline = u64::MAX;
        all.update_idle(cpu);
    }

    /// The online CPUs.
    pub fn online(&self) -> CpuSet {
        self.table.shared().online.get()
    }

    /// Sets a vCPU's affinity to the online CPUs of `cpus`. A VM's vCPUs are configured one after the other. Those that may
    /// use several CPUs share one affinity: the one configured last.
    ///
    /// # Errors
    /// [`StartError::NotOff`] if the vCPU isn't off; [`StartError::NoCpu`] if none of the CPUs is online.
    pub fn configure(&self, vcpu: VcpuId, cpus: CpuSet) -> Result<(), StartError> {
        let is_done = self.lock_vcpu(vcpu).configure(vcpu, cpus)?;
        if !is_done {
            // The lock of the CPU to which it will belong was not free.
            self.lock_all().configure(vcpu, cpus)?;
        }
        Ok(())
    }

    /// Sets a VM's weight and cap (ticks of CPU time, ticks of the period). All vCPUs of the VM must be off.
    ///
    /// A weight or number of ticks of 0 counts as 1.
    pub fn set_share(&self, vm: u8, weight: u16, cap: Option<(u64, u64)>) {
        self.lock_all().set_share(vm, weight, cap);
    }

    /// Forgets a VM, all of whose vCPUs are off: its share, and its vCPUs' affinities, times and deadlines.
    pub fn remove_vm(&self, vm: u8) {
        self.lock_all().remove_vm(vm, self.vcpus_of(vm));
    }

    /// Bars an unresponsive CPU: vCPUs with other CPUs in their affinity no longer wait or are placed there, except the one that it
    /// runs. Returns the CPUs to kick.
    pub fn bar(&self, cpu: CpuId, now: u64) -> CpuSet {
        self.lock_all().bar(cpu, self.vcpus(), now)
    }

    /// Whether a CPU is barred.
    pub fn is_barred(&self, cpu: CpuId) -> bool {
        self.table.shared().barred.contains(cpu)
    }

    /// Lifts a bar: the CPU answers.
    pub fn unbar(&self, cpu: CpuId) {
        self.lock_all().unbar(cpu, self.vcpus());
    }

    // Operations with the one lock that they need.

    /// See [`Locked::start`].
    ///
    /// # Errors
    /// [`StartError`]: nothing has changed.
    pub fn start(&self, vcpu: VcpuId, now: u64) -> Result<Placement, StartError> {
        self.lock_vcpu(vcpu).start(vcpu, now)
    }

    /// See [`Locked::wake`].
    pub fn wake(&self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        self.lock_vcpu(vcpu).wake(vcpu, now)
    }

    /// See [`Locked::stop`].
    pub fn stop(&self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.lock_vcpu(vcpu).stop(vcpu, now)
    }

    /// See [`Locked::park`].
    pub fn park(&self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.lock_vcpu(vcpu).park(vcpu, now)
    }

    /// See [`Locked::unpark`].
    pub fn unpark(&self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        self.lock_vcpu(vcpu).unpark(vcpu, now)
    }

    /// See [`Locked::pick_next`].
    pub fn pick_next(&self, cpu: CpuId, now: u64) -> Switch {
        self.lock(cpu).pick_next(cpu, now)
    }

    /// See [`Locked::slice_end`].
    pub fn slice_end(&self, cpu: CpuId, now: u64) -> Switch {
        self.lock(cpu).slice_end(cpu, now)
    }

    /// See [`Locked::yield_now`].
    pub fn yield_now(&self, cpu: CpuId, now: u64) -> Switch {
        self.lock(cpu).yield_now(cpu, now)
    }

    /// See [`Locked::block`].
    pub fn block(&self, cpu: CpuId, now: u64) -> Switch {
        self.lock(cpu).block(cpu, now)
    }

    /// See [`Locked::off`].
    pub fn off(&self, cpu: CpuId, now: u64) -> Switch {
        self.lock(cpu).off(cpu, now)
    }

    /// See [`Locked::hand_over`].
    pub fn hand_over(&self, cpu: CpuId, to: VcpuId, woken: u64, now: u64) -> Option<VcpuId> {
        self.lock(cpu).hand_over(cpu, to, woken, now)
    }

    // Queries.

    /// The running vCPU of a CPU.
    pub fn current(&self, cpu: CpuId) -> Option<VcpuId> {
        self.lock(cpu).current(cpu)
    }

    /// The loaded vCPU of a CPU: the running one, or the last one to run if it has not been put.
    pub fn loaded(&self, cpu: CpuId) -> Option<VcpuId> {
        self.lock(cpu).loaded(cpu)
    }

    /// Whether a vCPU waits for a CPU.
    pub fn contended(&self, cpu: CpuId) -> bool {
        self.lock(cpu).contended(cpu)
    }

    /// See [`Locked::deadline`].
    pub fn deadline(&self, cpu: CpuId) -> u64 {
        self.lock(cpu).deadline(cpu)
    }

    /// A vCPU's state.
    pub fn state(&self, vcpu: VcpuId) -> State {
        self.lock_vcpu(vcpu).state(vcpu)
    }

    /// A vCPU's accumulated times up to `now`.
    pub fn times(&self, vcpu: VcpuId, now: u64) -> Times {
        self.lock_vcpu(vcpu).times(vcpu, now)
    }

    /// The vCPUs of a VM that have been configured.
    pub fn vcpus_of(&self, vm: u8) -> impl Iterator<Item = VcpuId> + use<> {
        let vcpus = self.table.shared().vm(vm.into()).vcpus.load(Ordering::Relaxed);
        (0..vcpus).filter_map(move |vcpu| VcpuId::new(vm, vcpu as u8))
    }

    /// The vCPUs of all VMs.
    pub(crate) fn vcpus(&self) -> impl Iterator<Item = VcpuId> {
        (0..VMS as u8).flat_map(|vm| self.vcpus_of(vm))
    }

    /// Whether all vCPUs of a VM are off, as required before its reset or destruction. They are looked at one after the
    /// other: the caller excludes that one is started meanwhile.
    pub fn all_off(&self, vm: u8) -> bool {
        self.vcpus_of(vm).all(|vcpu| self.state(vcpu) == State::Off)
    }

    /// Whether no vCPU of a VM runs, will run, or is loaded: each is off or parked. As for [`all_off`](Self::all_off), the
    /// caller excludes that one is resumed meanwhile.
    pub fn all_put(&self, vm: u8) -> bool {
        self.vcpus_of(vm).all(|vcpu| {
            let locked = self.lock_vcpu(vcpu);
            match locked.state(vcpu) {
                State::Off => true,
                State::Parked => locked.held_by(vcpu).is_none(),
                State::Ready(_) | State::Running(_) | State::Blocked => false,
            }
        })
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}
