//! The scheduler's operations.

use crate::queue::Queues;
use crate::{CPUS, CpuId, CpuSet, Loading, Next, Placement, State, Switch, VCPUS, VcpuId};

/// Who runs where, and who waits. See the crate's documentation for the policy and for what callers
/// do.
///
/// Times are ticks of a counter that all CPUs share; they are only added up, not used to decide.
pub struct Scheduler {
    pub(crate) queues: Queues,
    pub(crate) cpus: [Cpu; CPUS],
    pub(crate) vcpus: [Vcpu; VCPUS],
    /// CPUs that can run vCPUs.
    pub(crate) online: CpuSet,
    /// CPUs of these that run none and have none in their queues.
    pub(crate) idle: CpuSet,
    /// CPUs that have a vCPU in their registers.
    pub(crate) holding: CpuSet,
    /// Goes up with each vCPU that comes to a CPU from elsewhere.
    arrivals: u32,
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
            woken: false,
            leave: None,
            since: 0,
            times: Times { ran: 0, waited: 0 },
        };
        Self {
            queues: Queues::new(),
            cpus: [CPU; CPUS],
            vcpus: [VCPU; VCPUS],
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
        self.requeue(cpu, now);
        let kick = self.balance(cpu, now);
        self.switch(cpu, kick, now)
    }

    /// The vCPU that runs gives the rest of its slice away.
    pub fn yield_now(&mut self, cpu: CpuId, now: u64) -> Switch {
        self.requeue(cpu, now);
        self.switch(cpu, None, now)
    }

    /// The vCPU that runs waits for an interrupt. It goes on running if it has been woken in the
    /// meantime.
    pub fn block(&mut self, cpu: CpuId, now: u64) -> Switch {
        if let Some(current) = self.cpus[cpu.index()].current {
            let it = self.vcpu_mut(current);
            match it.leave {
                Some(leave) => self.leave(cpu, current, leave, now),
                None if it.woken => it.woken = false,
                None => self.depart(cpu, current, State::Blocked, now),
            }
        }
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
        self.queues.is_filled(cpu)
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
    fn switch(&mut self, cpu: CpuId, mut kick: Option<CpuId>, now: u64) -> Switch {
        self.release(cpu, now);
        let next = match self.cpus[cpu.index()].current {
            Some(vcpu) => Some(Next { vcpu, loading: Loading::Loaded }),
            None => {
                let vcpu = self.queues.pop(cpu).or_else(|| self.steal(cpu));
                vcpu.map(|vcpu| self.run(cpu, vcpu, now))
            }
        };
        if kick.is_none() {
            kick = self.spread(cpu, now);
        }
        self.update_idle(cpu);
        Switch { next, contended: next.is_some() && self.contended(cpu), kick }
    }

    /// Makes a vCPU that has been taken out of its queue the one that runs.
    fn run(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> Next {
        self.vcpu_mut(vcpu).woken = false;
        self.enter(vcpu, State::Running(cpu), now);
        self.vcpu_mut(vcpu).last = Some(cpu);
        let it = &mut self.cpus[cpu.index()];
        it.current = Some(vcpu);
        let loading = match it.loaded.replace(vcpu) {
            None => Loading::Empty,
            Some(loaded) if loaded == vcpu => Loading::Loaded,
            Some(loaded) => Loading::Replace(loaded),
        };
        self.holding.set(cpu, true);
        Next { vcpu, loading }
    }

    /// Puts the vCPU that runs at the queue's tail, unless nobody waits.
    fn requeue(&mut self, cpu: CpuId, now: u64) {
        let Some(current) = self.cpus[cpu.index()].current else {
            return;
        };
        if let Some(leave) = self.vcpu_mut(current).leave {
            self.leave(cpu, current, leave, now);
        } else if self.queues.is_filled(cpu) {
            self.depart(cpu, current, State::Ready(cpu), now);
            self.queues.push(cpu, current);
        }
    }

    /// Takes the vCPU that runs off its CPU, but not out of the registers.
    fn depart(&mut self, cpu: CpuId, vcpu: VcpuId, state: State, now: u64) {
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
                self.queues.remove(cpu, vcpu);
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

    fn make_ready(&mut self, vcpu: VcpuId, now: u64) -> Placement {
        let cpu = self.place(vcpu);
        let kick = self.enqueue(cpu, vcpu, now);
        Placement { cpu, kick }
    }

    /// Puts a vCPU that comes from elsewhere into a CPU's queue. Returns whether the CPU must be
    /// told: it idles, or runs a vCPU without slices. If others wait already, it slices or has been
    /// told.
    pub(crate) fn enqueue(&mut self, cpu: CpuId, vcpu: VcpuId, now: u64) -> bool {
        let kick = !self.queues.is_filled(cpu);
        if kick {
            self.cpus[cpu.index()].turns = 0;
        }
        self.arrive(vcpu);
        self.enter(vcpu, State::Ready(cpu), now);
        self.queues.push(cpu, vcpu);
        self.update_idle(cpu);
        kick
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
        let idle = self.cpus[cpu.index()].current.is_none() && !self.queues.is_filled(cpu);
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
