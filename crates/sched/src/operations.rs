//! The scheduler's operations, with the locks of the CPUs concerned.

use crate::cpu::Cpu;
use crate::deadline::Sleepers;
use crate::vcpu::{Leave, Times, Vcpu};
use crate::{CpuId, Kicks, Loading, Locked, Next, Placement, StartError, State, Switch, VcpuId};

impl Locked<'_> {
    // State changes of a vCPU, requested from any CPU.

    /// Powers on a vCPU: it becomes ready.
    ///
    /// # Errors
    /// [`StartError`]: nothing has changed.
    pub fn start(&mut self, vcpu: VcpuId, now: u64) -> Result<Placement, StartError> {
        let it = &self[vcpu];
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        if !it.exists {
            return Err(StartError::NoCpu);
        }
        Ok(self.make_ready(vcpu, now))
    }

    /// Powers on a vCPU of a VM that is suspended: it is parked.
    ///
    /// # Errors
    /// [`StartError`]: nothing has changed.
    pub fn start_parked(&mut self, vcpu: VcpuId, now: u64) -> Result<Placement, StartError> {
        let it = &self[vcpu];
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        if !it.exists {
            return Err(StartError::NoCpu);
        }
        self.enter(vcpu, State::Parked, now);
        Ok(Placement { cpu: self.home(vcpu), kick: false })
    }

    /// Wakes a vCPU because of a pending interrupt. `None` if it is off or parked.
    ///
    /// If it runs, its CPU must be kicked to check for the interrupt.
    pub fn wake(&mut self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        let it = &mut self[vcpu];
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
        let it = &mut self[vcpu];
        if it.leave == Some(Leave::Park) {
            it.leave = None;
        }
        (it.state == State::Parked && it.leave.is_none()).then(|| self.make_ready(vcpu, now))
    }

    // Operations of a CPU on itself.

    /// Selects this CPU's next vCPU, when idle or kicked. The running vCPU continues unless it has been
    /// stopped or parked.
    pub fn pick_next(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self[cpu].current {
            match self[current].leave {
                Some(leave) => self.leave(cpu, current, leave, now),
                // The caller checks the pending interrupts after this.
                None => self[current].woken = false,
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
        if self.policed() { self.block_policed(cpu, now) } else { self.block_as::<false>(cpu, now) }
    }

    #[inline(never)]
    fn block_policed(&mut self, cpu: CpuId, now: u64) -> Switch {
        self.block_as::<true>(cpu, now)
    }

    #[inline(always)]
    fn block_as<const POLICED: bool>(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self[cpu].current {
            let it = &mut self[current];
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
        if let Some(current) = self[cpu].current {
            self.leave(cpu, current, Leave::Off, now);
        }
        self.switch(cpu, None, now)
    }

    // Queries.

    /// The running vCPU of a CPU.
    pub fn current(&self, cpu: CpuId) -> Option<VcpuId> {
        self[cpu].current
    }

    /// The loaded vCPU of a CPU: the running one, or the last one to run if it has not been put.
    pub fn loaded(&self, cpu: CpuId) -> Option<VcpuId> {
        self[cpu].loaded
    }

    /// Whether a vCPU waits for this CPU.
    #[inline]
    pub fn contended(&self, cpu: CpuId) -> bool {
        !self[cpu].queue.ready.is_empty()
    }

    /// A vCPU's state.
    #[inline]
    pub fn state(&self, vcpu: VcpuId) -> State {
        self[vcpu].state
    }

    /// Time at which a vCPU's state began.
    pub fn since(&self, vcpu: VcpuId) -> u64 {
        self[vcpu].since
    }

    /// A vCPU's accumulated times up to `now`.
    pub fn times(&self, vcpu: VcpuId, now: u64) -> Times {
        self[vcpu].times_at(now)
    }

    // Building blocks of the operations.

    /// Selects the next vCPU unless one is running, and returns the resulting switch. `kick` is a CPU to
    /// which a vCPU has already been migrated.
    pub(crate) fn switch(&mut self, cpu: CpuId, kick: Option<CpuId>, now: u64) -> Switch {
        if self.policed() { self.switch_policed(cpu, kick, now) } else { self.switch_plain(cpu, kick, now) }
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
        let next = match self[cpu].current {
            Some(vcpu) => Some(Next { vcpu, loading: Loading::Loaded }),
            None => {
                let vcpu = self.pop::<POLICED>(cpu).or_else(|| self.steal(cpu, now));
                vcpu.map(|vcpu| self.run::<POLICED>(cpu, vcpu, now))
            }
        };
        let waits = self.contended(cpu);
        if !waits {
            if POLICED {
                self[cpu].timed = false;
            }
            self.shared().clear_usable(cpu);
        } else if self.has_usable_idle(cpu) {
            return self.switch_and_spread(cpu, next, kick, now);
        }
        self.shared().set_idle(cpu, next.is_none() && !waits);
        let kicks = if next.is_none() { self.kicks(cpu, kick) } else { Kicks { other: kick, own: None } };
        if POLICED {
            self.update_deadline(cpu, now);
        }
        Switch { next, contended: next.is_some() && waits, kicks }
    }

    /// Completes a switch of a CPU where vCPUs wait while others are idle: migrates one, unless `kick` was to get one.
    /// If more of them could go, this CPU is kicked, too: a switch migrates at most one.
    #[cold]
    #[inline(never)]
    fn switch_and_spread(&mut self, cpu: CpuId, next: Option<Next>, kick: Option<CpuId>, now: u64) -> Switch {
        let kick = kick.or_else(|| self.spread(cpu, now));
        let waits = self.contended(cpu);
        self[cpu].timed &= waits;
        self.shared().set_idle(cpu, next.is_none() && !waits);
        if self.policed() {
            self.update_deadline(cpu, now);
        }
        self.missed |= self.to_spread(cpu).is_some();
        Switch { next, contended: next.is_some() && waits, kicks: self.kicks(cpu, kick) }
    }

    /// The CPUs to kick after a switch: this one, too, if it left work undone.
    #[cold]
    fn kicks(&mut self, cpu: CpuId, kick: Option<CpuId>) -> Kicks {
        Kicks { other: kick, own: core::mem::take(&mut self.missed).then_some(cpu) }
    }

    /// Makes a vCPU, already removed from its queue, the running one.
    #[inline(always)]
    fn run<const POLICED: bool>(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> Next {
        self.enter(vcpu, State::Running(cpu), now);
        let it = &mut self[vcpu];
        it.woken = false;
        it.migrated = false;
        it.last = Some(cpu);
        let it = &mut self[cpu];
        it.current = Some(vcpu);
        let loading = match it.loaded.replace(vcpu) {
            None => Loading::Empty,
            Some(loaded) if loaded == vcpu => Loading::Loaded,
            Some(loaded) => Loading::Replace(loaded),
        };
        self.shared().set_holding(cpu, true);
        if POLICED {
            self.begin_turn(cpu, usize::from(vcpu.vm()), now);
        }
        Next { vcpu, loading }
    }

    /// Requeues the running vCPU at its list's tail, unless no other waits, and returns it. With `yields`,
    /// another VM goes first.
    pub(crate) fn requeue(&mut self, cpu: CpuId, yields: bool, now: u64) -> Option<VcpuId> {
        let current = self[cpu].current?;
        if let Some(leave) = self[current].leave {
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
        let _ = self.push(cpu, current);
    }

    /// Throttles the VMs on this CPU that have used up their caps, and resumes those whose next period has
    /// begun.
    #[inline]
    fn apply_caps(&mut self, cpu: CpuId, now: u64) {
        if self.policed()
            && !self.capped().is_empty()
            && self.enforce_caps(cpu, now)
            && let Some(current) = self[cpu].current
        {
            self.preempt(cpu, current, now);
            self.throttle(cpu, usize::from(current.vm()), now);
        }
    }

    /// Ends the running of a vCPU; it stays loaded.
    fn depart(&mut self, cpu: CpuId, vcpu: VcpuId, state: State, now: u64) {
        if self.policed() {
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
            self.load_of(cpu).sub(1);
        }
        self[cpu].current = None;
        self.enter(vcpu, state, now);
    }

    /// Carries out the state change requested of the running vCPU.
    fn leave(&mut self, cpu: CpuId, vcpu: VcpuId, leave: Leave, now: u64) {
        self.depart(cpu, vcpu, State::Parked, now);
        self.settle(vcpu, leave, now);
    }

    /// Makes a vCPU that is neither running nor queued parked or off.
    fn settle(&mut self, vcpu: VcpuId, leave: Leave, now: u64) {
        self[vcpu].leave = None;
        let state = match leave {
            Leave::Park => State::Parked,
            Leave::Off => State::Off,
        };
        self.enter(vcpu, state, now);
        if let Some(cpu) = self.held_by(vcpu) {
            self[cpu].loaded = None;
            self.shared().set_holding(cpu, false);
        }
    }

    fn ask_to_leave(&mut self, vcpu: VcpuId, leave: Leave, now: u64) -> Option<CpuId> {
        let it = &mut self[vcpu];
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
            let it = &mut self[vcpu];
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
        let &Cpu { current, loaded, .. } = &self[cpu];
        if let Some(loaded) = loaded
            && current != Some(loaded)
            && let Some(leave) = self[loaded].leave
        {
            self.settle(loaded, leave, now);
        }
    }

    #[inline(always)]
    fn make_ready(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        if self.policed() { self.make_ready_policed(vcpu, now) } else { self.make_ready_as::<false>(vcpu, now) }
    }

    #[inline(never)]
    fn make_ready_policed(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        self.make_ready_as::<true>(vcpu, now)
    }

    #[inline(always)]
    fn make_ready_as<const POLICED: bool>(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        let held = self.held.mark();
        let cpu = self.place(vcpu);
        let kick = self.enqueue_as::<POLICED>(cpu, vcpu, now);
        self.held.keep(held);
        Placement { cpu, kick: kick | core::mem::take(&mut self.missed) }
    }

    /// Queues a vCPU from elsewhere on a CPU. Returns whether that CPU must be kicked: it is idle, or runs a
    /// vCPU without a slice timer. If others already wait there, it has a slice timer or a kick pending; it is kicked
    /// if they may use fewer CPUs, because one of the additional ones may just have looked for work in vain. A slice timer
    /// stays set after the vCPUs that waited have left ([`Cpu::timed`]), so that sleepers that are woken and stolen one
    /// after the other interrupt the running vCPU once. If the VM is throttled there, [`deadline`](Self::deadline)
    /// covers it.
    pub(crate) fn enqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        if self.policed() { self.enqueue_as::<true>(cpu, vcpu, now) } else { self.enqueue_as::<false>(cpu, vcpu, now) }
    }

    #[inline(always)]
    fn enqueue_as<const POLICED: bool>(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let vm = usize::from(vcpu.vm());
        let waited = self.contended(cpu);
        self.move_to(vcpu, cpu);
        self.arrive(cpu, vcpu);
        self.enter(vcpu, State::Ready(cpu), now);
        if POLICED {
            self.join(cpu, vm, now);
        } else {
            self.load_of(cpu).add(1);
        }
        let is_more = self.push(cpu, vcpu);
        let waits = self.contended(cpu);
        if waits {
            self.shared().set_idle(cpu, false);
        }
        let mut begins = waits && !waited;
        if begins {
            let it = &mut self[cpu];
            it.turns = 0;
            if POLICED {
                // A CPU may have become idle since one was looked for: then this one gives the vCPU away.
                begins = !core::mem::replace(&mut it.timed, true) || self.may_spread(cpu);
            }
        }
        begins || waits && is_more
    }

    /// Removes a vCPU from a CPU's queue.
    pub(crate) fn unqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) {
        self.remove(cpu, vcpu);
        self.part(cpu, usize::from(vcpu.vm()), now);
    }

    /// Marks a vCPU as the latest arrival at its CPU.
    pub(crate) fn arrive(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let arrivals = self[cpu].arrivals.wrapping_add(1);
        self[cpu].arrivals = arrivals;
        self[vcpu].arrived = arrivals;
    }

    /// Changes a vCPU's state and accounts the time spent in the old one.
    fn enter(&mut self, vcpu: VcpuId, state: State, now: u64) {
        let it = &mut self[vcpu];
        it.times = it.times_at(now);
        it.since = now;
        it.state = state;
    }

    /// The CPU on which this vCPU is loaded.
    pub(crate) fn held_by(&self, vcpu: VcpuId) -> Option<CpuId> {
        // Loaded vCPUs belong to their CPU.
        let home = self.home(vcpu);
        (self[home].loaded == Some(vcpu)).then_some(home)
    }

    pub(crate) fn update_idle(&mut self, cpu: CpuId) {
        let idle = self[cpu].current.is_none() && !self.contended(cpu);
        self.shared().set_idle(cpu, idle && self.online().contains(cpu));
    }

    /// Forgets all about a vCPU that is off.
    pub(crate) fn reset_vcpu(&mut self, vcpu: VcpuId) {
        Sleepers::cancel_deadline(self, vcpu);
        self[vcpu] = Vcpu::NEW;
    }
}
