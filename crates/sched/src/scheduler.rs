//! The scheduler's operations.

use crate::id::{VMS, VmSet};
use crate::queue::RunQueue;
use crate::vcpu::{Leave, Times, Vcpu, Vcpus};
use crate::vm::Vm;
use crate::{CPUS, CpuId, CpuSet, Loading, Next, Placement, State, Switch, VCPUS, VcpuId};

/// The schedule: running and waiting vCPUs of all CPUs. See the crate's documentation for the policy and the
/// caller's obligations.
///
/// Times are ticks of a counter shared by all CPUs. They may be slightly out of order, because CPUs read the
/// counter before they wait for the scheduler's lock.
// In this order: the fields that every operation uses are near the start, within reach of immediate offsets.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[repr(C)]
pub struct Scheduler {
    /// CPUs that run vCPUs.
    pub(crate) online: CpuSet,
    /// Online CPUs that run no vCPU and have none queued.
    pub(crate) idle: CpuSet,
    /// CPUs with a vCPU loaded.
    pub(crate) holding: CpuSet,
    /// Incremented whenever a vCPU arrives at a CPU from elsewhere.
    pub(crate) arrivals: u32,
    /// Whether there are several VMs, or caps. With a single VM no shares are accounted.
    pub(crate) policed: bool,
    /// VMs that have a cap.
    pub(crate) capped: VmSet,
    /// VMs with a configured share.
    pub(crate) known: VmSet,
    /// CPUs that do not answer.
    pub(crate) barred: CpuSet,
    pub(crate) vcpus: Vcpus,
    pub(crate) cpus: [Cpu; CPUS],
    pub(crate) vms: [Vm; VMS],
}

/// The scheduler's state of a CPU. Other CPUs access it to add, migrate or steal a vCPU, and to see whether one runs or is loaded.
// The fields that every operation uses come first; the size is a power of two, to index cheaply.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[repr(C, align(4096))]
pub(crate) struct Cpu {
    /// The running vCPU.
    pub(crate) current: Option<VcpuId>,
    /// The loaded vCPU: the running one, or the last one to run, now blocked.
    pub(crate) loaded: Option<VcpuId>,
    /// Slices that expired here since the CPU became contended or last migrated a vCPU away.
    pub(crate) turns: u8,
    pub(crate) queue: RunQueue,
}

/// Why a vCPU was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// It isn't off, or not yet: it has been stopped, but its CPU has not released it.
    NotOff,
    /// It has no CPU: see [`Scheduler::configure`].
    NoCpu,
}

impl Scheduler {
    /// A scheduler without CPUs and vCPUs. All of it is zero.
    pub const fn new() -> Self {
        Self {
            cpus: [const { Cpu { current: None, loaded: None, turns: 0, queue: RunQueue::new() } }; CPUS],
            vcpus: [Vcpu::NEW; VCPUS],
            vms: [Vm::UNUSED; VMS],
            known: VmSet::EMPTY,
            policed: false,
            capped: VmSet::EMPTY,
            online: CpuSet::EMPTY,
            idle: CpuSet::EMPTY,
            holding: CpuSet::EMPTY,
            arrivals: 0,
            barred: CpuSet::EMPTY,
        }
    }

    /// Brings a CPU online. It starts idle, with nothing loaded.
    pub fn cpu_online(&mut self, cpu: CpuId) {
        self.online.set(cpu, true);
        self.cpus[cpu.index()].queue.deadline = u64::MAX;
        self.update_idle(cpu);
    }

    /// The online CPUs.
    pub fn online(&self) -> CpuSet {
        self.online
    }

    /// Sets a vCPU's affinity to the online CPUs of `cpus`. See [`affinity`](crate::affinity).
    ///
    /// # Errors
    /// [`StartError::NotOff`] if the vCPU isn't off; [`StartError::NoCpu`] if none of the CPUs is online.
    pub fn configure(&mut self, vcpu: VcpuId, cpus: CpuSet) -> Result<(), StartError> {
        let allowed = cpus.and(self.online);
        let it = self.vcpu_mut(vcpu);
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        if allowed.is_empty() {
            return Err(StartError::NoCpu);
        }
        let allowed = self.without_barred(vcpu, allowed);
        let it = self.vcpu_mut(vcpu);
        it.allowed = allowed;
        it.last = it.last.filter(|last| allowed.contains(*last));
        let vm = &mut self.vms[usize::from(vcpu.vm()) & (VMS - 1)];
        if vm.weight == 0 {
            *vm = Vm::NEW;
        }
        vm.vcpus = (u16::from(vcpu.vcpu()) + 1).max(vm.vcpus);
        Ok(())
    }

    // State changes of a vCPU, requested from any CPU.

    /// Powers on a vCPU: it becomes ready.
    ///
    /// # Errors
    /// [`StartError`]: nothing has changed.
    pub fn start(&mut self, vcpu: VcpuId, now: u64) -> Result<Placement, StartError> {
        let it = self.vcpu_mut(vcpu);
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        if it.allowed.is_empty() {
            return Err(StartError::NoCpu);
        }
        Ok(self.make_ready(vcpu, now))
    }

    /// Wakes a vCPU because of a pending interrupt. `None` if it is off or parked.
    ///
    /// If it runs, its CPU must be kicked to check for the interrupt.
    pub fn wake(&mut self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        let it = self.vcpu_mut(vcpu);
        match it.state {
            State::Off | State::Parked => None,
            State::Ready(cpu) => Some(Placement { cpu, kick: false }),
            State::Running(cpu) => {
                it.woken = true;
                Some(Placement { cpu, kick: true })
            }
            State::Blocked => Some(self.make_ready(vcpu, now)),
        }
    }

    /// Powers off a vCPU from outside. Its register state is discarded, not put.
    ///
    /// Returns the CPU to kick if the vCPU is running or loaded: it is off only after that CPU has called
    /// [`pick_next`](Self::pick_next).
    pub fn stop(&mut self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.ask_to_leave(vcpu, Leave::Off, now)
    }

    /// Suspends a vCPU until [`unpark`](Self::unpark); one that is off stays off. Its CPU puts its registers.
    ///
    /// Returns the CPU to kick if the vCPU is running or loaded, as for [`stop`](Self::stop).
    pub fn park(&mut self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.ask_to_leave(vcpu, Leave::Park, now)
    }

    /// Resumes a parked vCPU. It becomes ready even if it was blocked, because it may have been woken
    /// meanwhile; a guest must expect WFI to complete without an interrupt.
    pub fn unpark(&mut self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        let it = self.vcpu_mut(vcpu);
        if it.leave == Some(Leave::Park) {
            it.leave = None;
        }
        (it.state == State::Parked && it.leave.is_none()).then(|| self.make_ready(vcpu, now))
    }

    // Operations of a CPU on itself.

    /// Selects this CPU's next vCPU, when idle or kicked. The running vCPU continues unless it has been
    /// stopped or parked.
    pub fn pick_next(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            match self.vcpu_mut(current).leave {
                Some(leave) => self.leave(cpu, current, leave, now),
                // The caller checks the pending interrupts after this.
                None => self.vcpu_mut(current).woken = false,
            }
        }
        self.switch(cpu, None, now)
    }

    /// Handles the expiry of the running vCPU's slice: requeues it and balances the load.
    pub fn slice_end(&mut self, cpu: CpuId, now: u64) -> Switch {
        let ended = self.requeue(cpu, false, now);
        // Before a migration: one of the remaining vCPUs must be able to replace the loaded one.
        self.apply_caps(cpu, now);
        let kick = self.balance(cpu, ended, now);
        self.switch(cpu, kick, now)
    }

    /// Gives up the rest of the running vCPU's slice.
    pub fn yield_now(&mut self, cpu: CpuId, now: u64) -> Switch {
        self.requeue(cpu, true, now);
        self.switch(cpu, None, now)
    }

    /// Blocks the running vCPU until an interrupt. It continues to run if it has been woken meanwhile.
    pub fn block(&mut self, cpu: CpuId, now: u64) -> Switch {
        if self.policed { self.block_policed(cpu, now) } else { self.block_as::<false>(cpu, now) }
    }

    #[inline(never)]
    fn block_policed(&mut self, cpu: CpuId, now: u64) -> Switch {
        self.block_as::<true>(cpu, now)
    }

    #[inline(always)]
    fn block_as<const POLICED: bool>(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            let it = self.vcpu_mut(current);
            match it.leave {
                Some(leave) => return self.leave_now(cpu, current, leave, now),
                None if it.woken => it.woken = false,
                None => self.depart_as::<POLICED>(cpu, current, State::Blocked, now),
            }
        }
        if POLICED { self.switch_policed(cpu, None, now) } else { self.switch_plain(cpu, None, now) }
    }

    #[cold]
    #[inline(never)]
    fn leave_now(&mut self, cpu: CpuId, current: VcpuId, leave: Leave, now: u64) -> Switch {
        self.leave(cpu, current, leave, now);
        self.switch(cpu, None, now)
    }

    /// Powers off the running vCPU. Its registers are not put.
    pub fn off(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            self.leave(cpu, current, Leave::Off, now);
        }
        self.switch(cpu, None, now)
    }

    // Queries.

    /// The running vCPU of a CPU.
    pub fn current(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus[cpu.index()].current
    }

    /// The loaded vCPU of a CPU: the running one, or the last one to run if it has not been put.
    pub fn loaded(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus[cpu.index()].loaded
    }

    /// Whether a vCPU waits for this CPU.
    #[inline]
    pub fn contended(&self, cpu: CpuId) -> bool {
        !self.cpus[cpu.index()].queue.ready.is_empty()
    }

    /// A vCPU's state.
    #[inline]
    pub fn state(&self, vcpu: VcpuId) -> State {
        self.vcpus[vcpu.index()].state
    }

    /// When a vCPU's state began.
    pub fn since(&self, vcpu: VcpuId) -> u64 {
        self.vcpus[vcpu.index()].since
    }

    /// The vCPUs of a VM that have been configured.
    pub fn vcpus_of(&self, vm: u8) -> impl Iterator<Item = VcpuId> + use<> {
        let vcpus = self.vms[usize::from(vm) & (VMS - 1)].vcpus;
        (0..vcpus).filter_map(move |vcpu| VcpuId::new(vm, vcpu as u8))
    }

    /// Whether all vCPUs of a VM are off, as required before its reset or destruction.
    pub fn all_off(&self, vm: u8) -> bool {
        self.vcpus_of(vm).all(|vcpu| self.state(vcpu) == State::Off)
    }

    /// Whether no vCPU of a VM runs, will run, or is loaded: each is off or parked.
    pub fn all_put(&self, vm: u8) -> bool {
        let is_put = |vcpu: VcpuId| match self.state(vcpu) {
            State::Off => true,
            State::Parked => self.held_by(vcpu).is_none(),
            State::Ready(_) | State::Running(_) | State::Blocked => false,
        };
        self.vcpus_of(vm).all(is_put)
    }

    /// A vCPU's accumulated times up to `now`.
    pub fn times(&self, vcpu: VcpuId, now: u64) -> Times {
        self.vcpus[vcpu.index()].times_at(now)
    }

    // Building blocks of the operations.

    /// Selects the next vCPU unless one is running, and returns the resulting switch. `kick` is a CPU to
    /// which a vCPU has already been migrated.
    fn switch(&mut self, cpu: CpuId, kick: Option<CpuId>, now: u64) -> Switch {
        if self.policed { self.switch_policed(cpu, kick, now) } else { self.switch_plain(cpu, kick, now) }
    }

    #[inline(never)]
    fn switch_policed(&mut self, cpu: CpuId, kick: Option<CpuId>, now: u64) -> Switch {
        self.switch_as::<true>(cpu, kick, now)
    }

    #[inline(never)]
    fn switch_plain(&mut self, cpu: CpuId, kick: Option<CpuId>, now: u64) -> Switch {
        self.switch_as::<false>(cpu, kick, now)
    }

    #[inline(always)]
    fn switch_as<const POLICED: bool>(&mut self, cpu: CpuId, kick: Option<CpuId>, now: u64) -> Switch {
        self.release(cpu, now);
        if POLICED {
            self.apply_caps(cpu, now);
        }
        let next = match self.cpus[cpu.index()].current {
            Some(vcpu) => Some(Next { vcpu, loading: Loading::Loaded }),
            None => {
                let vcpu = self.cpus[cpu.index()].queue.pop::<POLICED>(&mut self.vcpus).or_else(|| self.steal(cpu, now));
                vcpu.map(|vcpu| self.run::<POLICED>(cpu, vcpu, now))
            }
        };
        let waits = self.contended(cpu);
        let idle = self.idle.without(cpu.into());
        if waits && !idle.is_empty() {
            return self.switch_and_spread(cpu, next, kick, now);
        }
        self.idle.set(cpu, next.is_none() && !waits);
        if POLICED {
            self.update_deadline(cpu, now);
        }
        Switch { next, contended: next.is_some() && waits, kick }
    }

    /// Completes a switch of a CPU where vCPUs wait while others are idle: migrates one, unless `kick` was to get one.
    /// If more of them could go, [`deadline`](Self::deadline) is now: a switch kicks at most one CPU.
    #[cold]
    #[inline(never)]
    fn switch_and_spread(&mut self, cpu: CpuId, next: Option<Next>, kick: Option<CpuId>, now: u64) -> Switch {
        let kick = kick.or_else(|| self.spread(cpu, now));
        let waits = self.contended(cpu);
        self.idle.set(cpu, next.is_none() && !waits);
        // Without shares there is one VM, and its vCPUs have one affinity, or a CPU each: no two that could go wait here.
        if self.policed {
            self.update_deadline(cpu, now);
            if self.to_spread(cpu).is_some() {
                self.cpus[cpu.index()].queue.deadline = now;
            }
        }
        Switch { next, contended: next.is_some() && waits, kick }
    }

    /// Makes a vCPU, already removed from its queue, the running one.
    #[inline(always)]
    fn run<const POLICED: bool>(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> Next {
        self.enter(vcpu, State::Running(cpu), now);
        let it = self.vcpu_mut(vcpu);
        it.woken = false;
        it.sent = false;
        it.last = Some(cpu);
        let it = &mut self.cpus[cpu.index()];
        it.current = Some(vcpu);
        let loading = match it.loaded.replace(vcpu) {
            None => Loading::Empty,
            Some(loaded) if loaded == vcpu => Loading::Loaded,
            Some(loaded) => Loading::Replace(loaded),
        };
        self.holding.set(cpu, true);
        if POLICED {
            self.begin_turn(cpu, usize::from(vcpu.vm()), now);
        }
        Next { vcpu, loading }
    }

    /// Requeues the running vCPU at its list's tail, unless no other waits, and returns it. With `yields`,
    /// another VM goes first.
    fn requeue(&mut self, cpu: CpuId, yields: bool, now: u64) -> Option<VcpuId> {
        let current = self.cpus[cpu.index()].current?;
        if let Some(leave) = self.vcpu_mut(current).leave {
            self.leave(cpu, current, leave, now);
        } else if self.contended(cpu) {
            self.charge(cpu, now);
            if yields {
                self.step_behind(cpu, usize::from(current.vm()));
            }
            self.preempt(cpu, current, now);
            return Some(current);
        }
        None
    }

    /// Requeues the running vCPU at its list's tail.
    fn preempt(&mut self, cpu: CpuId, current: VcpuId, now: u64) {
        self.depart(cpu, current, State::Ready(cpu), now);
        self.cpus[cpu.index()].queue.push(&mut self.vcpus, current);
    }

    /// Throttles the VMs on this CPU that have used up their caps, and resumes those whose next period has
    /// begun.
    #[inline]
    fn apply_caps(&mut self, cpu: CpuId, now: u64) {
        if self.policed
            && !self.capped.is_empty()
            && self.enforce_caps(cpu, now)
            && let Some(current) = self.cpus[cpu.index()].current
        {
            self.preempt(cpu, current, now);
            self.throttle(cpu, usize::from(current.vm()), now);
        }
    }

    /// Ends the running of a vCPU; it stays loaded.
    fn depart(&mut self, cpu: CpuId, vcpu: VcpuId, state: State, now: u64) {
        if self.policed {
            self.depart_as::<true>(cpu, vcpu, state, now);
        } else {
            self.depart_as::<false>(cpu, vcpu, state, now);
        }
    }

    #[inline(always)]
    fn depart_as<const POLICED: bool>(&mut self, cpu: CpuId, vcpu: VcpuId, state: State, now: u64) {
        let stays = matches!(state, State::Ready(_));
        if POLICED {
            self.end_turn(cpu, usize::from(vcpu.vm()), stays, now);
        } else if !stays {
            self.cpus[cpu.index()].queue.load -= 1;
        }
        self.cpus[cpu.index()].current = None;
        self.enter(vcpu, state, now);
    }

    /// Carries out the state change requested of the running vCPU.
    fn leave(&mut self, cpu: CpuId, vcpu: VcpuId, leave: Leave, now: u64) {
        self.depart(cpu, vcpu, State::Parked, now);
        self.settle(vcpu, leave, now);
    }

    /// Makes a vCPU that is neither running nor queued parked or off.
    fn settle(&mut self, vcpu: VcpuId, leave: Leave, now: u64) {
        self.vcpu_mut(vcpu).leave = None;
        let state = match leave {
            Leave::Park => State::Parked,
            Leave::Off => State::Off,
        };
        self.enter(vcpu, state, now);
        if let Some(cpu) = self.held_by(vcpu) {
            self.cpus[cpu.index()].loaded = None;
            self.holding.set(cpu, false);
        }
    }

    fn ask_to_leave(&mut self, vcpu: VcpuId, leave: Leave, now: u64) -> Option<CpuId> {
        let it = self.vcpu_mut(vcpu);
        match it.state {
            State::Off => return None,
            State::Running(cpu) => {
                // Off takes precedence over parked.
                if it.leave != Some(Leave::Off) {
                    it.leave = Some(leave);
                }
                return Some(cpu);
            }
            State::Ready(cpu) => {
                self.unqueue(cpu, vcpu, now);
                self.update_idle(cpu);
            }
            State::Blocked | State::Parked => {}
        }
        if let Some(cpu) = self.held_by(vcpu) {
            // Not running, but still loaded, with its list registers live: that CPU must put or drop them first.
            let it = self.vcpu_mut(vcpu);
            if it.leave != Some(Leave::Off) {
                it.leave = Some(leave);
            }
            self.enter(vcpu, State::Parked, now);
            return Some(cpu);
        }
        self.settle(vcpu, leave, now);
        None
    }

    /// Carries out the state change requested of the loaded vCPU that isn't running.
    fn release(&mut self, cpu: CpuId, now: u64) {
        let &Cpu { current, loaded, .. } = &self.cpus[cpu.index()];
        if let Some(loaded) = loaded
            && current != Some(loaded)
            && let Some(leave) = self.vcpu_mut(loaded).leave
        {
            self.settle(loaded, leave, now);
        }
    }

    #[inline(always)]
    fn make_ready(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        if self.policed { self.make_ready_policed(vcpu, now) } else { self.make_ready_as::<false>(vcpu, now) }
    }

    #[inline(never)]
    fn make_ready_policed(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        self.make_ready_as::<true>(vcpu, now)
    }

    #[inline(always)]
    fn make_ready_as<const POLICED: bool>(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        let cpu = self.place(vcpu);
        let kick = self.enqueue_as::<POLICED>(cpu, vcpu, now);
        Placement { cpu, kick }
    }

    /// Queues a vCPU from elsewhere on a CPU. Returns whether that CPU must be kicked: it is idle, or runs a
    /// vCPU without a slice timer. If others already wait there, it has a slice timer or a kick pending. If
    /// the VM is throttled there, [`deadline`](Self::deadline) covers it.
    pub(crate) fn enqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        if self.policed { self.enqueue_as::<true>(cpu, vcpu, now) } else { self.enqueue_as::<false>(cpu, vcpu, now) }
    }

    #[inline(always)]
    fn enqueue_as<const POLICED: bool>(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let vm = usize::from(vcpu.vm());
        let waited = self.contended(cpu);
        self.arrive(vcpu);
        self.enter(vcpu, State::Ready(cpu), now);
        if POLICED {
            self.join(cpu, vm, now);
        } else {
            self.cpus[cpu.index()].queue.load += 1;
        }
        self.cpus[cpu.index()].queue.push(&mut self.vcpus, vcpu);
        let waits = self.contended(cpu);
        if waits {
            self.idle.set(cpu, false);
        }
        let kick = waits && !waited;
        if kick {
            self.cpus[cpu.index()].turns = 0;
        }
        kick
    }

    /// Removes a vCPU from a CPU's queue.
    pub(crate) fn unqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) {
        self.cpus[cpu.index()].queue.remove(&mut self.vcpus, vcpu);
        self.part(cpu, usize::from(vcpu.vm()), now);
    }

    /// Marks a vCPU as the latest arrival at its CPU.
    pub(crate) fn arrive(&mut self, vcpu: VcpuId) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.vcpu_mut(vcpu).arrived = self.arrivals;
    }

    /// Changes a vCPU's state and accounts the time spent in the old one.
    fn enter(&mut self, vcpu: VcpuId, state: State, now: u64) {
        let it = self.vcpu_mut(vcpu);
        it.times = it.times_at(now);
        it.since = now;
        it.state = state;
    }

    /// The CPU on which this vCPU is loaded.
    pub(crate) fn held_by(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.vcpus[vcpu.index()].last.filter(|cpu| self.cpus[cpu.index()].loaded == Some(vcpu))
    }

    pub(crate) fn update_idle(&mut self, cpu: CpuId) {
        let idle = self.cpus[cpu.index()].current.is_none() && !self.contended(cpu);
        self.idle.set(cpu, idle && self.online.contains(cpu));
    }

    /// Forgets all about a vCPU that is off.
    pub(crate) fn reset_vcpu(&mut self, vcpu: VcpuId) {
        *self.vcpu_mut(vcpu) = Vcpu::NEW;
    }

    fn vcpu_mut(&mut self, vcpu: VcpuId) -> &mut Vcpu {
        &mut self.vcpus[vcpu.index()]
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}
