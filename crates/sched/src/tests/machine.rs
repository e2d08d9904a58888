//! A simulated machine: acts on the scheduler's results as a hypervisor does, and checks them.

use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use super::{VCPUS_OF_VM, cpu, cpus, vcpu};
use crate::id::VMS;
use crate::{CpuId, CpuSet, Kicks, Loading, Locked, Next, Placement, Scheduler, State, Switch, VcpuId};

/// A slice, in ticks.
pub(super) const SLICE: u64 = 100;

pub(super) struct Machine {
    pub(super) scheduler: Box<Scheduler>,
    pub(super) cpus: usize,
    pub(super) vcpus: usize,
    /// Kicks sent but not handled.
    pub(super) kicked: BTreeSet<CpuId>,
    /// The vCPU loaded on each CPU.
    registers: Vec<Option<VcpuId>>,
    /// End of each CPU's slice, if it is contended.
    pub(super) slice_end: Vec<Option<u64>>,
    pub(super) now: u64,
    /// CPUs whose locks others hold during the next operation.
    pub(super) locked: CpuSet,
    /// The affinities of vCPUs of removed VMs.
    pub(super) removed: BTreeMap<u8, Vec<(VcpuId, CpuSet)>>,
}

impl Machine {
    /// A machine whose vCPU i has the affinity `affinity[i]`; 0 means that it doesn't exist.
    pub(super) fn new(cpus_online: usize, affinity: &[u64]) -> Self {
        let scheduler = Box::new(Scheduler::new());
        for number in 0..cpus_online {
            scheduler.cpu_online(cpu(number));
        }
        for (index, mask) in affinity.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            scheduler.configure(vcpu(index), cpus(*mask)).expect("the mask has a CPU that is online");
        }
        // Equal weight per vCPU, whichever its VM.
        for (vm, vcpus) in (0..).zip(affinity.chunks(VCPUS_OF_VM)) {
            scheduler.set_share(vm, 10 * vcpus.len() as u16, None);
        }
        Self {
            scheduler,
            cpus: cpus_online,
            vcpus: affinity.len(),
            kicked: BTreeSet::new(),
            registers: std::vec![None; cpus_online],
            slice_end: std::vec![None; cpus_online],
            now: 0,
            locked: CpuSet::EMPTY,
            removed: BTreeMap::new(),
        }
    }

    /// A machine that has worked: vCPUs in its CPUs' registers, and CPUs that were kicked.
    pub(super) fn around(
        scheduler: Box<Scheduler>,
        cpus: usize,
        vcpus: usize,
        registers: Vec<Option<VcpuId>>,
        kicked: BTreeSet<CpuId>,
        now: u64,
    ) -> Self {
        let slice_end = std::vec![None; cpus];
        Self { scheduler, cpus, vcpus, kicked, registers, slice_end, now, locked: CpuSet::EMPTY, removed: BTreeMap::new() }
    }

    /// A machine with identical vCPUs, all ready.
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
        self.scheduler.current(cpu(number)).map(super::number)
    }

    /// Locks of other CPUs that are taken during an operation of a CPU or a vCPU of this CPU.
    pub(super) fn locks(&self, except: CpuId) -> Vec<Locked<'_>> {
        let others = self.locked.and(&self.scheduler.online()).except(except);
        others.iter().map(|cpu| self.scheduler.lock(cpu)).collect()
    }

    /// Starts a vCPU. Returns whether it was off.
    pub(super) fn start(&mut self, index: usize) -> bool {
        let locks = self.locks(self.scheduler.home(vcpu(index)));
        let placement = self.scheduler.start(vcpu(index), self.now).ok();
        drop(locks);
        self.placed(placement);
        placement.is_some()
    }

    pub(super) fn wake(&mut self, index: usize) {
        let locks = self.locks(self.scheduler.home(vcpu(index)));
        let placement = self.scheduler.wake(vcpu(index), self.now);
        drop(locks);
        self.placed(placement);
    }

    pub(super) fn placed(&mut self, placement: Option<Placement>) {
        if let Some(Placement { cpu, kick: true }) = placement {
            self.kicked.insert(cpu);
        }
    }

    /// Handles kicks until none is pending.
    pub(super) fn take_kicks(&mut self) {
        while let Some(cpu) = self.kicked.pop_first() {
            self.step(cpu, Scheduler::pick_next);
        }
    }

    /// Performs one operation of a CPU on itself and applies the result.
    pub(super) fn act(&mut self, cpu: CpuId, operation: impl FnOnce(&Scheduler, CpuId, u64) -> Switch) -> Switch {
        // The running vCPU, or the blocked one that is still loaded: either may become off or parked.
        let before = self.registers[super::place(cpu)];
        let locks = self.locks(cpu);
        let switch = operation(&self.scheduler, cpu, self.now);
        drop(locks);
        let left = |vcpu: &VcpuId| match self.scheduler.state(*vcpu) {
            State::Off => true,
            State::Parked => self.scheduler.lock_vcpu(*vcpu).held_by(*vcpu).is_none(),
            _ => false,
        };
        if let Some(before) = before.filter(left) {
            self.forget(before);
        }
        self.kicked.extend(switch.kicks.iter());
        assert_eq!(switch.next.map(|next| next.vcpu), self.scheduler.current(cpu));
        let end = &mut self.slice_end[super::place(cpu)];
        let stays = switch.next.is_some_and(|next| next.loading == Loading::Loaded);
        *end = switch.contended.then(|| end.filter(|end| stays && *end > self.now).unwrap_or(self.now + SLICE));
        let Some(next) = switch.next else {
            assert!(!switch.contended);
            return switch;
        };
        assert_eq!(switch.contended, self.scheduler.contended(cpu));
        let held = self.registers[super::place(cpu)];
        match next.loading {
            Loading::Loaded => assert_eq!(held, Some(next.vcpu)),
            // The loaded vCPU was powered off or parked: its state was discarded or put.
            Loading::Empty => assert!(self.scheduler.holding().contains(cpu)),
            Loading::Replace(other) => {
                assert_eq!(held, Some(other));
                assert_ne!(other, next.vcpu);
            }
        }
        self.registers[super::place(cpu)] = Some(next.vcpu);
        self.check_registers();
        switch
    }

    /// [`act`](Self::act), discarding the result.
    pub(super) fn step(&mut self, cpu: CpuId, operation: impl FnOnce(&Scheduler, CpuId, u64) -> Switch) {
        let _ = self.act(cpu, operation);
    }

    /// The running vCPU wakes another one and blocks, a tick later: in one operation where it is possible, if
    /// `at_once`. Returns whether it was.
    pub(super) fn hand_over(&mut self, cpu: CpuId, to: VcpuId, at_once: bool) -> bool {
        let woken = self.now;
        self.now += 1;
        let (mut placement, mut was_possible) = (None, false);
        self.step(cpu, |scheduler, cpu, now| {
            if at_once && let Some(from) = scheduler.hand_over(cpu, to, woken, now) {
                was_possible = true;
                let next = Some(Next { vcpu: to, loading: Loading::Replace(from) });
                return Switch { next, contended: false, kicks: Kicks::NONE };
            }
            placement = scheduler.wake(to, woken);
            scheduler.block(cpu, now)
        });
        self.placed(placement.filter(|placement| placement.cpu != cpu));
        was_possible
    }

    /// Takes a vCPU that was powered off or parked off its CPU.
    pub(super) fn forget(&mut self, vcpu: VcpuId) {
        for held in &mut self.registers {
            if *held == Some(vcpu) {
                *held = None;
            }
        }
    }

    /// Checks that no vCPU is loaded twice, and that the scheduler's view is correct.
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

    /// Checks the invariants between operations.
    pub(super) fn check(&self) {
        let scheduler = &*self.scheduler;
        let all = scheduler.lock_all();
        let mut queued = BTreeSet::new();
        let online = scheduler.online();
        let mut active = [0; VMS];
        assert!(all.shared().idle(&CpuSet::ALL).without(&online).is_empty());
        for cpu in online.iter() {
            let run_queue = &all[cpu].queue;
            let shared = all.load_of(cpu);
            let now_present = shared.present.get();
            let (mut present, mut load) = (0, 0);
            for (vm, active) in active.iter_mut().enumerate() {
                let list: Vec<_> = run_queue.iter_vm(&all.held, vm).collect();
                let mut back: Vec<_> = run_queue.iter_vm_back(&all.held, vm).collect();
                back.reverse();
                assert_eq!(list, back);
                for vcpu in &list {
                    assert_eq!(all.home(*vcpu), cpu);
                    assert!(all.usable_by(*vcpu).except(cpu).without(&shared.usable()).is_empty() || run_queue.throttled.contains(vm));
                    assert_eq!(usize::from(vcpu.vm()), vm);
                    assert!(queued.insert(*vcpu), "{vcpu:?} is in two queues");
                    assert_eq!(all.state(*vcpu), State::Ready(cpu));
                }
                let runs = all.current(cpu).is_some_and(|current| usize::from(current.vm()) == vm);
                let count = list.len() + usize::from(runs);
                if !all.policed() {
                    load += count;
                    continue;
                }
                assert_eq!(usize::from(shared.count(vm)), count);
                *active += count;
                let throttled = run_queue.throttled.contains(vm);
                assert!(!(throttled && (runs || list.is_empty())), "throttled without a waiting vCPU, or while running");
                assert_eq!(run_queue.ready.contains(vm), !list.is_empty() && !throttled);
                assert_eq!(now_present.contains(vm), count != 0 && !throttled);
                if now_present.contains(vm) {
                    present += 1;
                    load += count;
                }
                if throttled {
                    let deadline = all.deadline(cpu);
                    assert!(deadline != u64::MAX || self.kicked.contains(&cpu), "no event ends the wait of VM {vm} on {cpu:?}");
                }
            }
            assert_eq!(shared.get(), load);
            assert_eq!(shared.competing(), present > 1);
            if present > 1 {
                for vm in now_present.iter() {
                    assert!(run_queue.entities[vm].vtime >= run_queue.vtime, "VM {vm} has accumulated credit");
                }
            }
            let queue_is_empty = run_queue.ready.is_empty();
            let current = all.current(cpu);
            if let Some(vcpu) = current {
                assert_eq!(all.state(vcpu), State::Running(cpu));
                assert_eq!(all.loaded(cpu), current);
                let is_timed = self.slice_end[super::place(cpu)].is_some() || self.kicked.contains(&cpu);
                assert!(queue_is_empty || is_timed, "no slice of {cpu:?} ends, and vCPUs wait");
                assert!(!all[cpu].timed || is_timed, "{cpu:?} has no slice timer");
            } else if !queue_is_empty {
                assert!(self.kicked.contains(&cpu), "{cpu:?} has work but no kick pending");
            }
            let idle = current.is_none() && queue_is_empty;
            assert_eq!(all.shared().idle(&online).contains(cpu), idle);
            assert_eq!(all.shared().holding(&online).contains(cpu), all.loaded(cpu).is_some());
        }
        for (vm, active) in active.into_iter().enumerate() {
            assert_eq!(usize::from(all.vm(vm).active()), active, "VM {vm}");
        }
        for index in 0..self.vcpus {
            let vcpu = vcpu(index);
            let allowed = all.usable_by(vcpu);
            match all.state(vcpu) {
                State::Running(cpu) => {
                    assert_eq!(all.current(cpu), Some(vcpu));
                    assert_eq!(all.home(vcpu), cpu);
                    assert!(allowed.contains(cpu));
                }
                State::Ready(cpu) => {
                    assert!(queued.contains(&vcpu));
                    assert!(allowed.contains(cpu));
                    // Its registers are in memory, or loaded right there.
                    assert!(all.held_by(vcpu).is_none_or(|held| held == cpu));
                }
                State::Off => assert_eq!(all.held_by(vcpu), None),
                State::Blocked | State::Parked => {}
            }
        }
    }

    /// Handles kicks and deadlines until none is pending.
    pub(super) fn settle(&mut self) {
        loop {
            self.take_kicks();
            let Some(due) = (0..self.cpus).map(cpu).find(|cpu| self.scheduler.deadline(*cpu) <= self.now) else { return };
            self.step(due, Scheduler::pick_next);
        }
    }

    /// Checks, with no kick and no deadline pending, that no CPU idles while a vCPU waits that it could run.
    pub(super) fn check_busy(&self) {
        for index in 0..self.vcpus {
            if let State::Ready(on) = self.scheduler.state(vcpu(index))
                // It may wait for its next period.
                && !self.scheduler.lock_all().capped().contains(index / VCPUS_OF_VM)
            {
                let idle = self.scheduler.affinity(vcpu(index)).and(&self.scheduler.idle());
                assert!(idle.is_empty(), "vCPU {index} waits on {on:?}, {idle:?} idle");
            }
        }
    }

    /// Removes a VM, if all its vCPUs are off.
    pub(super) fn remove(&mut self, vm: u8) {
        if !self.removed.contains_key(&vm) && self.scheduler.all_off(vm) {
            let vcpus = (0..self.vcpus).map(vcpu).filter(|vcpu| vcpu.vm() == vm);
            let affinities = vcpus.map(|vcpu| (vcpu, self.scheduler.affinity(vcpu))).collect();
            self.removed.insert(vm, affinities);
            self.scheduler.remove_vm(vm);
        }
    }

    /// Creates a VM that was removed.
    pub(super) fn create(&mut self, vm: u8, cap: Option<(u64, u64)>) {
        let Some(affinities) = self.removed.remove(&vm) else { return };
        for (vcpu, cpus) in affinities {
            assert_eq!(self.scheduler.times(vcpu, self.now), crate::Times::default());
            self.scheduler.configure(vcpu, cpus).expect("it is off");
        }
        self.scheduler.set_share(vm, 50, cap);
    }

    /// Stops all vCPUs of a VM.
    pub(super) fn stop_all(&mut self, vm: u8) {
        for vcpu in (0..self.vcpus).map(vcpu).filter(|vcpu| vcpu.vm() == vm) {
            match self.scheduler.stop(vcpu, self.now) {
                Some(cpu) => drop(self.kicked.insert(cpu)),
                None => self.forget(vcpu),
            }
        }
        self.take_kicks();
    }

    /// Starts all existing vCPUs.
    pub(super) fn start_all(&mut self) {
        for index in 0..self.vcpus {
            if !self.scheduler.affinity(vcpu(index)).is_empty() {
                let placement = self.scheduler.start(vcpu(index), self.now).expect("it is off");
                self.placed(Some(placement));
            }
        }
        self.take_kicks();
    }

    /// Advances time to just before the next tick's end: CPUs with an expired slice or cap act.
    pub(super) fn tick(&mut self) {
        self.now += 1;
        for number in 0..self.cpus {
            let id = cpu(number);
            if self.slice_end[number].is_some_and(|end| end <= self.now) {
                self.step(id, Scheduler::slice_end);
            } else if self.scheduler.deadline(id) <= self.now {
                self.step(id, Scheduler::pick_next);
            }
        }
        self.take_kicks();
    }
}
