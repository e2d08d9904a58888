//! A simulated machine: acts on the scheduler's answers as a hypervisor does, and checks them.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::{cpu, cpus, vcpu};
use crate::{CpuId, Loading, Placement, Scheduler, State, Switch, VcpuId};

pub(super) struct Machine {
    pub(super) scheduler: Scheduler,
    pub(super) cpus: usize,
    pub(super) vcpus: usize,
    /// Kicks that have been sent but not taken.
    pub(super) kicked: BTreeSet<CpuId>,
    /// Whose state each CPU's registers have.
    registers: Vec<Option<VcpuId>>,
    pub(super) now: u64,
}

impl Machine {
    /// A machine whose vCPU i may use the CPUs in `affinity[i]`.
    pub(super) fn new(cpus_online: usize, affinity: &[u64]) -> Self {
        let mut scheduler = Scheduler::new();
        for number in 0..cpus_online {
            scheduler.cpu_online(cpu(number));
        }
        for (index, mask) in affinity.iter().enumerate() {
            scheduler.configure(vcpu(index), cpus(*mask)).expect("the mask has a CPU that is online");
        }
        Self {
            scheduler,
            cpus: cpus_online,
            vcpus: affinity.len(),
            kicked: BTreeSet::new(),
            registers: std::vec![None; cpus_online],
            now: 0,
        }
    }

    /// A machine on which all vCPUs are alike, and ready.
    pub(super) fn busy(cpus_online: usize, vcpus: usize) -> Self {
        let mut machine = Self::new(cpus_online, &std::vec![u64::MAX; vcpus]);
        for index in 0..vcpus {
            let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
            machine.placed(Some(placement));
        }
        machine.take_kicks();
        machine
    }

    pub(super) fn current(&self, number: usize) -> Option<usize> {
        self.scheduler.current(cpu(number)).map(VcpuId::index)
    }

    pub(super) fn wake(&mut self, index: usize) {
        let placement = self.scheduler.wake(vcpu(index), self.now);
        self.placed(placement);
    }

    pub(super) fn placed(&mut self, placement: Option<Placement>) {
        if let Some(Placement { cpu, kick: true }) = placement {
            self.kicked.insert(cpu);
        }
    }

    /// Lets every CPU that has been kicked look at its queue, until there is none.
    pub(super) fn take_kicks(&mut self) {
        while let Some(cpu) = self.kicked.pop_first() {
            self.step(cpu, Scheduler::pick_next);
        }
    }

    /// One operation of a CPU on itself, and what follows from it.
    pub(super) fn act(&mut self, cpu: CpuId, operation: impl FnOnce(&mut Scheduler, CpuId, u64) -> Switch) -> Switch {
        // Who runs, or sleeps in the registers: either may turn out to be off.
        let before = self.registers[cpu.index()];
        let switch = operation(&mut self.scheduler, cpu, self.now);
        if let Some(before) = before.filter(|vcpu| self.scheduler.state(*vcpu) == State::Off) {
            self.forget(before);
        }
        if let Some(kick) = switch.kick {
            assert_ne!(kick, cpu, "a CPU need not kick itself");
            self.kicked.insert(kick);
        }
        assert_eq!(switch.next.map(|next| next.vcpu), self.scheduler.current(cpu));
        let Some(next) = switch.next else {
            assert!(!switch.contended);
            return switch;
        };
        assert_eq!(switch.contended, self.scheduler.contended(cpu));
        let held = self.registers[cpu.index()];
        match next.loading {
            Loading::Loaded => assert_eq!(held, Some(next.vcpu)),
            // What is still there was powered off: its state is lost, as it should be.
            Loading::Empty => assert!(self.scheduler.holding.contains(cpu)),
            Loading::Replace(other) => {
                assert_eq!(held, Some(other));
                assert_ne!(other, next.vcpu);
            }
        }
        self.registers[cpu.index()] = Some(next.vcpu);
        self.check_registers();
        switch
    }

    /// [`act`](Self::act), where only what follows from it matters.
    pub(super) fn step(&mut self, cpu: CpuId, operation: impl FnOnce(&mut Scheduler, CpuId, u64) -> Switch) {
        let _ = self.act(cpu, operation);
    }

    /// A vCPU powered off: whatever holds its registers, nobody needs them.
    pub(super) fn forget(&mut self, vcpu: VcpuId) {
        for held in &mut self.registers {
            if *held == Some(vcpu) {
                *held = None;
            }
        }
    }

    /// No vCPU is loaded twice; and the scheduler knows who is loaded.
    fn check_registers(&self) {
        let mut seen = BTreeSet::new();
        for (number, held) in self.registers.iter().enumerate() {
            let alive = held.filter(|held| self.scheduler.state(*held) != State::Off);
            if let Some(vcpu) = alive {
                assert!(seen.insert(vcpu), "{vcpu:?} is loaded on two CPUs");
            }
            let known = self.scheduler.loaded(cpu(number));
            assert!(known == alive || known.is_none(), "CPU {number}: {known:?}, {alive:?}");
        }
    }

    /// What must hold between any two operations.
    pub(super) fn check(&self) {
        let scheduler = &self.scheduler;
        let mut queued = BTreeSet::new();
        let online = scheduler.online();
        assert!(scheduler.queues.filled().without(online).is_empty());
        assert!(scheduler.idle.without(online).is_empty());
        for cpu in online.iter() {
            let queue: Vec<_> = scheduler.queues.iter(cpu).collect();
            let mut back: Vec<_> = scheduler.queues.iter_back(cpu).collect();
            back.reverse();
            assert_eq!(queue, back);
            assert_eq!(queue.len(), scheduler.queues.len(cpu));
            assert_eq!(!queue.is_empty(), scheduler.queues.is_filled(cpu));
            for vcpu in &queue {
                assert!(queued.insert(*vcpu), "{vcpu:?} is in two queues");
                assert_eq!(scheduler.state(*vcpu), State::Ready(cpu));
            }
            let current = scheduler.current(cpu);
            if let Some(vcpu) = current {
                assert_eq!(scheduler.state(vcpu), State::Running(cpu));
                assert_eq!(scheduler.loaded(cpu), current);
            } else if !queue.is_empty() {
                assert!(self.kicked.contains(&cpu), "{cpu:?} has work and does not know");
            }
            let idle = current.is_none() && queue.is_empty();
            assert_eq!(scheduler.idle.contains(cpu), idle);
            assert_eq!(scheduler.holding.contains(cpu), scheduler.loaded(cpu).is_some());
        }
        for index in 0..self.vcpus {
            let vcpu = vcpu(index);
            let allowed = scheduler.vcpus[index].allowed;
            match scheduler.state(vcpu) {
                State::Running(cpu) => {
                    assert_eq!(scheduler.current(cpu), Some(vcpu));
                    assert!(allowed.contains(cpu));
                }
                State::Ready(cpu) => {
                    assert!(queued.contains(&vcpu));
                    assert!(allowed.contains(cpu));
                    // Its registers are in memory, or right there.
                    assert!(scheduler.held_by(vcpu).is_none_or(|held| held == cpu));
                }
                State::Off => assert_eq!(scheduler.held_by(vcpu), None),
                State::Blocked | State::Parked => {}
            }
        }
    }

    /// With no kick under way: no CPU idles while a vCPU waits that it could run.
    pub(super) fn check_busy(&self) {
        for index in 0..self.vcpus {
            if let State::Ready(on) = self.scheduler.state(vcpu(index)) {
                let idle = self.scheduler.vcpus[index].allowed.and(self.scheduler.idle);
                assert!(idle.is_empty(), "vCPU {index} waits on {on:?}, {idle:?} idle");
            }
        }
    }

    /// How many vCPUs will have had a turn before this one, if it waits.
    pub(super) fn ahead(&self, index: usize) -> Option<usize> {
        let State::Ready(cpu) = self.scheduler.state(vcpu(index)) else {
            return None;
        };
        let place = self.scheduler.queues.iter(cpu).position(|other| other.index() == index)?;
        Some(place + usize::from(self.scheduler.current(cpu).is_some()))
    }
}
