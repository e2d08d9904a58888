//! The scheduler's operations.

use crate::id::{VMS, VmSet};
use crate::queue::{Links, RunQueue};
use crate::share::Vm;
use crate::{CPUS, CpuId, CpuSet, Loading, Next, Placement, State, Switch, VCPUS, VcpuId};

/// Who runs where, and who waits. See the crate's documentation for the policy and for what callers
/// do.
///
/// Times are ticks of a counter that all CPUs share. They may be a little out of order, where CPUs
/// read the counter before they wait for the scheduler's lock.
// In this order: what each operation needs is near the start, within the reach of an immediate offset.
#[repr(C)]
pub struct Scheduler {
    /// CPUs that can run vCPUs.
    pub(crate) online: CpuSet,
    /// CPUs of these that run none and have none in their queues.
    pub(crate) idle: CpuSet,
    /// CPUs that have a vCPU in their registers.
    pub(crate) holding: CpuSet,
    /// Goes up with each vCPU that comes to a CPU from elsewhere.
    arrivals: u32,
    /// Whether there are several VMs, or caps. A machine with one VM keeps no account of shares.
    pub(crate) policed: bool,
    pub(crate) cpus: [Cpu; CPUS],
    pub(crate) links: Links,
    pub(crate) vcpus: [Vcpu; VCPUS],
    pub(crate) vms: [Vm; VMS],
    /// VMs that were given a share.
    pub(crate) known: VmSet,
    /// VMs that have a cap.
    pub(crate) capped: VmSet,
    pub(crate) queues: [RunQueue; CPUS],
}

#[derive(Clone, Copy)]
pub(crate) struct Cpu {
    /// Who runs.
    pub(crate) current: Option<VcpuId>,
    /// Whose state is in the registers: the one that runs, or that ran last and is blocked or
    /// parked.
    pub(crate) loaded: Option<VcpuId>,
    /// Slices that ended here since the CPU became contended or last sent a vCPU away.
    pub(crate) turns: u8,
}

#[derive(Clone, Copy)]
pub(crate) struct Vcpu {
    pub(crate) state: State,
    /// CPUs that it may use; empty if there is no such vCPU.
    pub(crate) allowed: CpuSet,
    /// Where it ran last.
    pub(crate) last: Option<CpuId>,
    /// When it came to the CPU that it is on, as [`Scheduler::arrivals`].
    pub(crate) arrived: u32,
    /// It was sent to another CPU since it last ran.
    pub(crate) sent: bool,
    /// It was woken while it ran.
    woken: bool,
    /// What it shall be when it next leaves the guest.
    leave: Option<Leave>,
    /// When it came into its state.
    since: u64,
    times: Times,
}

/// What has been asked of a vCPU that runs on another CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    Park,
    Off,
}

/// How a vCPU has spent its time, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// On a CPU.
    pub ran: u64,
    /// Ready to run, but in a queue: time that others took from it.
    pub waited: u64,
}

/// Why a vCPU was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// It isn't off, or not yet: it has been stopped, but its CPU has not let go of it.
    NotOff,
    /// It has not been given a CPU with [`Scheduler::configure`].
    NoCpu,
}

impl Scheduler {
    /// A scheduler without CPUs and vCPUs.
    pub const fn new() -> Self {
        const CPU: Cpu = Cpu { current: None, loaded: None, turns: 0 };
        const VCPU: Vcpu = Vcpu {
            state: State::Off,
            allowed: CpuSet::EMPTY,
            last: None,
            arrived: 0,
            sent: false,
            woken: false,
            leave: None,
            since: 0,
            times: Times { ran: 0, waited: 0 },
        };
        Self {
            queues: [const { RunQueue::new() }; CPUS],
            links: Links::new(),
            cpus: [CPU; CPUS],
            vcpus: [VCPU; VCPUS],
            vms: [Vm::NEW; VMS],
            known: VmSet::EMPTY,
            policed: false,
            capped: VmSet::EMPTY,
            online: CpuSet::EMPTY,
            idle: CpuSet::EMPTY,
            holding: CpuSet::EMPTY,
            arrivals: 0,
        }
    }

    /// Lets a CPU run vCPUs. It starts idle, with nothing in its registers.
    pub fn cpu_online(&mut self, cpu: CpuId) {
        self.online.set(cpu, true);
        self.update_idle(cpu);
    }

    /// The CPUs that can run vCPUs.
    pub fn online(&self) -> CpuSet {
        self.online
    }

    /// Says which CPUs a vCPU may use: those of `cpus` that are online. See
    /// [`affinity`](crate::affinity).
    ///
    /// # Errors
    /// [`StartError::NotOff`] if the vCPU isn't off; [`StartError::NoCpu`] if no CPU is left.
    pub fn configure(&mut self, vcpu: VcpuId, cpus: CpuSet) -> Result<(), StartError> {
        let allowed = cpus.and(self.online);
        let it = self.vcpu_mut(vcpu);
        if it.state != State::Off {
            return Err(StartError::NotOff);
        }
        if allowed.is_empty() {
            return Err(StartError::NoCpu);
        }
        it.allowed = allowed;
        it.last = it.last.filter(|last| allowed.contains(*last));
        Ok(())
    }

    // What a vCPU goes through, asked from any CPU.

    /// Powers a vCPU on: it becomes ready.
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

    /// Wakes a vCPU, because an interrupt is pending for it. `None` if it is off or parked.
    ///
    /// If it runs, its CPU is to be kicked: to look at the interrupt.
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

    /// Powers a vCPU off from outside. Its registers are worth nothing any more, and are not put.
    ///
    /// Returns a CPU to kick, if the vCPU runs there: it is off only when that CPU has called
    /// [`pick_next`](Self::pick_next).
    pub fn stop(&mut self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.ask_to_leave(vcpu, Leave::Off, now)
    }

    /// Holds a vCPU back until [`unpark`](Self::unpark); one that is off stays off.
    ///
    /// Returns a CPU to kick, if the vCPU runs there, as with [`stop`](Self::stop).
    pub fn park(&mut self, vcpu: VcpuId, now: u64) -> Option<CpuId> {
        self.ask_to_leave(vcpu, Leave::Park, now)
    }

    /// Lets a parked vCPU go on. It becomes ready even if it was blocked, for it may have been
    /// woken since; a guest must expect WFI to end without an interrupt.
    pub fn unpark(&mut self, vcpu: VcpuId, now: u64) -> Option<Placement> {
        let it = self.vcpu_mut(vcpu);
        if it.state == State::Parked && it.leave.is_none() {
            return Some(self.make_ready(vcpu, now));
        }
        if it.leave == Some(Leave::Park) {
            it.leave = None;
        }
        None
    }

    // What a CPU asks for itself.

    /// What this CPU does now: for an idle CPU, and after a kick. Who runs goes on running, unless
    /// it has been stopped or parked.
    pub fn pick_next(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            match self.vcpu_mut(current).leave {
                Some(leave) => self.leave(cpu, current, leave, now),
                // The caller looks at the pending interrupts after this.
                None => self.vcpu_mut(current).woken = false,
            }
        }
        self.switch(cpu, None, now)
    }

    /// The slice of the vCPU that runs is over: the next one's turn, and time to balance.
    pub fn slice_end(&mut self, cpu: CpuId, now: u64) -> Switch {
        let ended = self.requeue(cpu, false, now);
        // Before a vCPU is sent away: the rest must be able to take this CPU's registers.
        self.apply_caps(cpu, now);
        let kick = self.balance(cpu, ended, now);
        self.switch(cpu, kick, now)
    }

    /// The vCPU that runs gives the rest of its slice away.
    pub fn yield_now(&mut self, cpu: CpuId, now: u64) -> Switch {
        self.requeue(cpu, true, now);
        self.switch(cpu, None, now)
    }

    /// The vCPU that runs waits for an interrupt. It goes on running if it has been woken in the
    /// meantime.
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

    /// The vCPU that runs powers itself off. Its registers are not put.
    pub fn off(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            self.leave(cpu, current, Leave::Off, now);
        }
        self.switch(cpu, None, now)
    }

    // Questions.

    /// Who runs on a CPU.
    pub fn current(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus[cpu.index()].current
    }

    /// Whose registers a CPU holds: those of the vCPU that runs, or that ran last and has not been
    /// put.
    pub fn loaded(&self, cpu: CpuId) -> Option<VcpuId> {
        self.cpus[cpu.index()].loaded
    }

    /// Whether a vCPU waits for this CPU.
    #[inline]
    pub fn contended(&self, cpu: CpuId) -> bool {
        !self.queues[cpu.index()].ready.is_empty()
    }

    /// What a vCPU is doing.
    #[inline]
    pub fn state(&self, vcpu: VcpuId) -> State {
        self.vcpus[vcpu.index()].state
    }

    /// Whether all vCPUs of a VM are off, as they must be before it is reset or torn down.
    pub fn all_off(&self, vm: u8) -> bool {
        (0..stile_board::MAX_VCPUS as u8).filter_map(|vcpu| VcpuId::new(vm, vcpu)).all(|vcpu| self.state(vcpu) == State::Off)
    }

    /// How a vCPU has spent its time, up to `now`.
    pub fn times(&self, vcpu: VcpuId, now: u64) -> Times {
        self.vcpus[vcpu.index()].times_at(now)
    }

    // Steps that the operations are made of.

    /// Chooses who runs if nobody does, and says what that takes. `kick` is a CPU that has already
    /// been given a vCPU.
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
    fn switch_as<const POLICED: bool>(&mut self, cpu: CpuId, mut kick: Option<CpuId>, now: u64) -> Switch {
        self.release(cpu, now);
        if POLICED {
            self.apply_caps(cpu, now);
        }
        let next = match self.cpus[cpu.index()].current {
            Some(vcpu) => Some(Next { vcpu, loading: Loading::Loaded }),
            None => {
                let vcpu = self.queues[cpu.index()].pop(&mut self.links).or_else(|| self.steal(cpu, now));
                vcpu.map(|vcpu| self.run::<POLICED>(cpu, vcpu, now))
            }
        };
        let mut waits = self.contended(cpu);
        let idle = self.idle.without(cpu.into());
        if waits && kick.is_none() && !idle.is_empty() {
            kick = self.spread(cpu, idle, now);
            waits = self.contended(cpu);
        }
        self.idle.set(cpu, next.is_none() && !waits);
        if POLICED {
            self.update_deadline(cpu, now);
        }
        Switch { next, contended: next.is_some() && waits, kick }
    }

    /// Makes a vCPU that has been taken out of its queue the one that runs.
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

    /// Puts the vCPU that runs at its list's tail, unless nobody waits, and returns it. If it
    /// yields, another VM goes first.
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

    /// Puts the vCPU that runs at its list's tail.
    fn preempt(&mut self, cpu: CpuId, current: VcpuId, now: u64) {
        self.depart(cpu, current, State::Ready(cpu), now);
        self.queues[cpu.index()].push(&mut self.links, current);
    }

    /// Throttles the VMs on this CPU that have used up their caps, and lets those go on whose next
    /// period has begun.
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

    /// Takes the vCPU that runs off its CPU, but not out of the registers.
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
            self.queues[cpu.index()].load -= 1;
        }
        self.cpus[cpu.index()].current = None;
        self.enter(vcpu, state, now);
    }

    /// Grants what was asked of the vCPU that runs.
    fn leave(&mut self, cpu: CpuId, vcpu: VcpuId, leave: Leave, now: u64) {
        self.depart(cpu, vcpu, State::Parked, now);
        self.settle(vcpu, leave, now);
    }

    /// Makes a vCPU that neither runs nor is in a queue parked or off.
    fn settle(&mut self, vcpu: VcpuId, leave: Leave, now: u64) {
        self.vcpu_mut(vcpu).leave = None;
        match leave {
            Leave::Park => self.enter(vcpu, State::Parked, now),
            Leave::Off => {
                self.enter(vcpu, State::Off, now);
                if let Some(cpu) = self.held_by(vcpu) {
                    self.cpus[cpu.index()].loaded = None;
                    self.holding.set(cpu, false);
                }
            }
        }
    }

    fn ask_to_leave(&mut self, vcpu: VcpuId, leave: Leave, now: u64) -> Option<CpuId> {
        let it = self.vcpu_mut(vcpu);
        match it.state {
            State::Off => return None,
            State::Running(cpu) => {
                // To be off outweighs to be parked.
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
        if leave == Leave::Off
            && let Some(cpu) = self.held_by(vcpu)
        {
            // Asleep, but in that CPU's registers, with its interrupts: off is off the hardware, too.
            self.vcpu_mut(vcpu).leave = Some(Leave::Off);
            self.enter(vcpu, State::Parked, now);
            return Some(cpu);
        }
        self.settle(vcpu, leave, now);
        None
    }

    /// Grants what was asked of a vCPU that sleeps in this CPU's registers.
    fn release(&mut self, cpu: CpuId, now: u64) {
        let Cpu { current, loaded, .. } = self.cpus[cpu.index()];
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

    /// Puts a vCPU that comes from elsewhere into a CPU's queue. Returns whether the CPU must be
    /// told: it idles, or runs a vCPU without slices. If others wait already, it slices or has been
    /// told. If its VM is throttled there, the CPU's [`deadline`](Self::deadline) will tell it.
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
            self.queues[cpu.index()].load += 1;
        }
        self.queues[cpu.index()].push(&mut self.links, vcpu);
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

    /// Takes a vCPU out of a CPU's queue.
    pub(crate) fn unqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) {
        self.queues[cpu.index()].remove(&mut self.links, vcpu);
        self.part(cpu, usize::from(vcpu.vm()), now);
    }

    /// Marks a vCPU as the latest to have come to a CPU.
    pub(crate) fn arrive(&mut self, vcpu: VcpuId) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.vcpu_mut(vcpu).arrived = self.arrivals;
    }

    /// Changes a vCPU's state and adds up the time it spent in the old one.
    fn enter(&mut self, vcpu: VcpuId, state: State, now: u64) {
        let it = self.vcpu_mut(vcpu);
        it.times = it.times_at(now);
        it.since = now;
        it.state = state;
    }

    /// The CPU that has this vCPU in its registers.
    pub(crate) fn held_by(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.vcpus[vcpu.index()].last.filter(|cpu| self.cpus[cpu.index()].loaded == Some(vcpu))
    }

    pub(crate) fn update_idle(&mut self, cpu: CpuId) {
        let idle = self.cpus[cpu.index()].current.is_none() && !self.contended(cpu);
        self.idle.set(cpu, idle && self.online.contains(cpu));
    }

    fn vcpu_mut(&mut self, vcpu: VcpuId) -> &mut Vcpu {
        &mut self.vcpus[vcpu.index()]
    }
}

impl Vcpu {
    fn times_at(&self, now: u64) -> Times {
        let spent = now.saturating_sub(self.since);
        let mut times = self.times;
        match self.state {
            State::Running(_) => times.ran = times.ran.wrapping_add(spent),
            State::Ready(_) => times.waited = times.waited.wrapping_add(spent),
            State::Off | State::Blocked | State::Parked => {}
        }
        times
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}
