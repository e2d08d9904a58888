//! A simulated machine: the real scheduler, driven by guests that compute and sleep.
//!
//! Guests' time is simulated, in microseconds; the scheduler's own operations, switches and migrations take none. A kick arrives after
//! [`KICK`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use stile_sched::{CpuId, CpuSet, Loading, Scheduler, Switch, VcpuId};

/// A time slice.
pub const SLICE: u64 = 5000;
/// The time that a kick takes.
const KICK: u64 = 1;

/// Behaviour of a vCPU: computes for some time, and sleeps for some, both exponentially distributed.
#[derive(Clone, Copy)]
pub struct Load {
    /// Mean time between wake-up and sleep; `None`: it never sleeps.
    pub burst: Option<u64>,
    /// Mean time asleep.
    pub sleep: u64,
}

/// A vCPU that answers requests, and wants a quarter of a CPU.
const SERVER: Load = Load { burst: Some(200), sleep: 600 };
/// A vCPU that never sleeps.
const COMPUTES: Load = Load { burst: None, sleep: 0 };

/// Half of the CPUs' time is wanted.
pub const SERVERS: Plan = Plan { cpus: 1, vms: 0, vcpus: 2, load: |_| SERVER, time: 0 };
/// 64 vCPUs for each CPU, all busy.
pub const BUSY: Plan = Plan { cpus: 1, vms: 0, vcpus: 64, load: |_| COMPUTES, time: 0 };
/// Half of the VMs never sleep, the others answer requests.
pub const MIXED: Plan = Plan { cpus: 1, vms: 0, vcpus: 4, load: |vm| if vm % 2 == 0 { COMPUTES } else { SERVER }, time: 0 };

/// Work of a machine.
#[derive(Clone, Copy)]
pub struct Plan {
    pub cpus: usize,
    /// Number of VMs; 0 for as many as CPUs, or as there may be, with more vCPUs each.
    pub vms: usize,
    /// vCPUs of each VM, or for each CPU.
    pub vcpus: usize,
    /// The load of each vCPU of a VM.
    pub load: fn(vm: usize) -> Load,
    /// The simulated time, after a tenth of it that is not measured.
    pub time: u64,
}

/// Measurements.
pub struct Outcome {
    /// From each wake-up to the moment at which the vCPU runs.
    pub latencies: Vec<u64>,
    /// Time that each VM's vCPUs ran.
    pub ran: Vec<u64>,
    /// Number of times that a vCPU ran on another CPU than before.
    pub migrations: u64,
    pub kicks: u64,
    /// Calls of the scheduler, each of which takes its lock.
    pub operations: u64,
    /// CPUs times measured time.
    pub capacity: u64,
}

impl Outcome {
    /// The latency that this part of all wake-ups (0 to 1) does not exceed.
    pub fn latency(&self, part: f64) -> u64 {
        let place = (self.latencies.len() as f64 * part) as usize;
        self.latencies.get(place.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or(0)
    }

    /// Events for each second of a CPU.
    pub fn rate(&self, events: u64) -> f64 {
        events as f64 * 1e6 / self.capacity as f64
    }
}

struct Cpu {
    running: Option<usize>,
    /// Time at which the running vCPU's progress was last accounted.
    since: u64,
    slice_end: Option<u64>,
    kicked: bool,
    /// Timers that were set before are void.
    timer: u64,
}

struct Guest {
    id: VcpuId,
    load: Load,
    /// Time until it sleeps.
    left: u64,
    woken: Option<u64>,
    last: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Kick(usize),
    Timer(usize, u64),
    Wake(usize),
}

pub struct Machine {
    scheduler: Box<Scheduler>,
    cpus: Vec<Cpu>,
    guests: Vec<Guest>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    now: u64,
    random: u64,
    outcome: Outcome,
}

impl Machine {
    /// Runs a plan.
    pub fn run(plan: &Plan) -> Outcome {
        let for_each_cpu = plan.cpus.min(stile_board::MAX_VMS);
        let (vms, vcpus) = if plan.vms == 0 { (for_each_cpu, plan.vcpus * plan.cpus / for_each_cpu) } else { (plan.vms, plan.vcpus) };
        let plan = &Plan { vms, vcpus, ..*plan };
        let mut machine = Self::new(plan);
        machine.advance(plan.time / 10);
        let ran = machine.ran(plan.vms);
        machine.outcome = Outcome { latencies: Vec::new(), migrations: 0, kicks: 0, operations: 0, ..machine.outcome };
        let from = machine.now;
        machine.advance(plan.time / 10 + plan.time);
        let mut outcome = Outcome { ran: machine.ran(plan.vms), capacity: (machine.now - from) * plan.cpus as u64, ..machine.outcome };
        outcome.ran.iter_mut().zip(ran).for_each(|(after, before)| *after -= before);
        outcome.latencies.sort_unstable();
        outcome
    }

    fn new(plan: &Plan) -> Self {
        let scheduler = Box::new(Scheduler::new());
        let mut all = CpuSet::EMPTY;
        for cpu in (0..plan.cpus).filter_map(CpuId::new) {
            scheduler.cpu_online(cpu);
            all.set(cpu, true);
        }
        let cpu = || Cpu { running: None, since: 0, slice_end: None, kicked: false, timer: 0 };
        let outcome = Outcome { latencies: Vec::new(), ran: Vec::new(), migrations: 0, kicks: 0, operations: 0, capacity: 0 };
        let mut machine = Self {
            scheduler,
            cpus: (0..plan.cpus).map(|_| cpu()).collect(),
            guests: Vec::new(),
            events: BinaryHeap::new(),
            now: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            outcome,
        };
        for vm in 0..plan.vms {
            machine.scheduler.set_share(vm as u8, 100, None);
            for vcpu in 0..plan.vcpus {
                let id = VcpuId::new(vm as u8, vcpu as u8).expect("no more than there may be");
                machine.scheduler.configure(id, all).expect("it is off");
                let load = (plan.load)(vm);
                let left = machine.burst(load);
                let number = machine.guests.len();
                machine.guests.push(Guest { id, load, left, woken: None, last: None });
                let placement = machine.scheduler.start(machine.guests[number].id, 0).expect("it has CPUs");
                if placement.kick {
                    machine.kick(placement.cpu);
                }
            }
        }
        machine
    }

    fn ran(&self, vms: usize) -> Vec<u64> {
        let mut ran = vec![0; vms];
        for guest in &self.guests {
            ran[usize::from(guest.id.vm())] += self.scheduler.times(guest.id, self.now).ran;
        }
        ran
    }

    fn advance(&mut self, until: u64) {
        while let Some(&Reverse((at, event))) = self.events.peek()
            && at <= until
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Kick(cpu) => {
                    self.cpus[cpu].kicked = false;
                    self.act(cpu, Scheduler::pick_next);
                }
                Event::Timer(cpu, timer) if timer == self.cpus[cpu].timer => self.expire(cpu),
                Event::Timer(..) => {}
                Event::Wake(number) => self.wake(number),
            }
        }
        self.now = until;
    }

    fn wake(&mut self, number: usize) {
        let left = self.burst(self.guests[number].load);
        let guest = &mut self.guests[number];
        (guest.left, guest.woken) = (left, Some(self.now));
        self.outcome.operations += 1;
        if let Some(placement) = self.scheduler.wake(guest.id, self.now)
            && placement.kick
        {
            self.kick(placement.cpu);
        }
    }

    fn kick(&mut self, cpu: CpuId) {
        let it = &mut self.cpus[cpu.index()];
        if !std::mem::replace(&mut it.kicked, true) {
            self.outcome.kicks += 1;
            self.events.push(Reverse((self.now + KICK, Event::Kick(cpu.index()))));
        }
    }

    /// The running vCPU goes to sleep, or its slice is over.
    fn expire(&mut self, cpu: usize) {
        self.account(cpu);
        let Some(number) = self.cpus[cpu].running else { return };
        if self.guests[number].left == 0 {
            let asleep = self.exponential(self.guests[number].load.sleep);
            self.events.push(Reverse((self.now + asleep, Event::Wake(number))));
            self.act(cpu, Scheduler::block);
        } else {
            self.act(cpu, Scheduler::slice_end);
        }
    }

    fn account(&mut self, cpu: usize) {
        let it = &mut self.cpus[cpu];
        if let Some(number) = it.running {
            let left = &mut self.guests[number].left;
            *left = left.saturating_sub(self.now - it.since);
        }
        it.since = self.now;
    }

    /// Performs an operation of a CPU on itself, and does what the scheduler decided.
    fn act(&mut self, cpu: usize, operation: fn(&Scheduler, CpuId, u64) -> Switch) {
        self.account(cpu);
        self.outcome.operations += 1;
        let switch = operation(&self.scheduler, CpuId::new(cpu).expect("online"), self.now);
        switch.kicks.iter().for_each(|cpu| self.kick(cpu));
        let next = switch.next.map(|next| (self.number(next.vcpu), next.loading));
        let it = &mut self.cpus[cpu];
        let stays = next.is_some_and(|(_, loading)| loading == Loading::Loaded);
        it.slice_end = switch.contended.then(|| it.slice_end.filter(|&end| stays && end > self.now).unwrap_or(self.now + SLICE));
        it.running = next.map(|(number, _)| number);
        it.timer += 1;
        let Some((number, _)) = next else { return };
        let guest = &mut self.guests[number];
        if let Some(woken) = guest.woken.take() {
            self.outcome.latencies.push(self.now - woken);
        }
        if guest.last.replace(cpu).is_some_and(|last| last != cpu) {
            self.outcome.migrations += 1;
        }
        let sleeps = self.now.saturating_add(guest.left);
        let at = it.slice_end.map_or(sleeps, |end| end.min(sleeps));
        self.events.push(Reverse((at, Event::Timer(cpu, it.timer))));
    }

    fn number(&self, id: VcpuId) -> usize {
        let of_vm = self.guests.len() / (usize::from(self.guests.last().expect("there is one").id.vm()) + 1);
        usize::from(id.vm()) * of_vm + usize::from(id.vcpu())
    }

    fn burst(&mut self, load: Load) -> u64 {
        load.burst.map_or(u64::MAX, |mean| self.exponential(mean))
    }

    fn exponential(&mut self, mean: u64) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let uniform = (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() * mean as f64) as u64 + 1
    }
}
