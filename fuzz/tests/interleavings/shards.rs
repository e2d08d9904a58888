//! CPUs with a lock each, and vCPUs that move between them.

use std::sync::Arc;

use loom::thread;

use super::lock::shards::{self, Initial};
use super::{Watched, model};

impl Initial for u32 {
    const INITIAL: Self = 0;
}

/// Two CPUs; a vCPU, which counts its wake-ups, is at first the first one's.
struct Machine {
    shards: shards::Shards<(), u32, u32, u32, 2, 1>,
    /// Accessed by whoever has a CPU's lock.
    cpus: [Watched; 2],
    /// Accessed by whoever has the lock of the CPU to which the vCPU belongs.
    vcpu: Watched,
}

impl Machine {
    fn new() -> Arc<Self> {
        Arc::new(Self { shards: shards::Shards::new(()), cpus: [Watched::new(0), Watched::new(0)], vcpu: Watched::new(0) })
    }

    /// A CPU wakes the vCPU: on the CPU to which it belongs, or on another one, if that CPU's lock is free.
    fn wake(&self, prefers: usize) {
        let mut held = self.shards.lock_home(0);
        *held.item_mut(0) += 1;
        self.vcpu.add(1);
        if held.also(prefers) {
            held.move_home(0, prefers);
        }
        let home = held.home(0);
        *held.shard_mut(home) += 1;
        self.cpus[home].add(1);
    }

    /// A CPU steals the vCPU, if another one has it whose lock is free.
    fn steal(&self, cpu: usize) {
        let mut held = self.shards.lock(cpu);
        let mark = held.mark();
        if held.also(1 - cpu) && held.home(0) != cpu {
            held.move_home(0, cpu);
            self.vcpu.add(0);
            self.cpus[1 - cpu].add(0);
        }
        held.keep(mark);
        self.cpus[cpu].add(0);
        if held.home(0) == cpu {
            self.vcpu.add(0);
        }
    }

    /// Asserts that no lock is held, and how often the vCPU was woken.
    fn check(&self, wakes: u32) {
        let all = self.shards.whole();
        assert_eq!((*all.item(0), self.vcpu.get()), (wakes, wakes));
        assert_eq!((*all.shard(0) + *all.shard(1), self.cpus[0].get() + self.cpus[1].get()), (wakes, wakes));
    }
}

fn beside(machine: &Arc<Machine>, other: impl FnOnce(&Machine) + 'static, this: impl FnOnce(&Machine)) {
    let its = machine.clone();
    let other = thread::spawn(move || other(&its));
    this(machine);
    other.join().unwrap();
}

/// An access to a CPU's or a vCPU's state is exclusive, wherever the vCPU goes, and nobody waits for ever.
#[test]
fn a_vcpu_that_moves_has_one_owner() {
    model(3, || {
        let machine = Machine::new();
        beside(&machine, |it| it.wake(1), |it| it.wake(0));
        machine.check(2);
    });
    model(3, || {
        let machine = Machine::new();
        beside(&machine, |it| it.steal(1), |it| it.wake(1));
        machine.check(1);
    });
    model(3, || {
        let machine = Machine::new();
        beside(&machine, |it| it.steal(1), |it| it.steal(0));
        machine.check(0);
    });
}

/// A CPU that needs all locks waits for each, beside CPUs that hold one and try another.
#[test]
fn all_locks_are_had_at_last() {
    model(3, || {
        let machine = Machine::new();
        beside(&machine, |it| it.wake(1), |it| it.check_any());
        machine.check(1);
    });
}

impl Machine {
    /// Asserts, with all locks held, that all parts of a wake-up are seen, or none.
    fn check_any(&self) {
        let all = self.shards.whole();
        assert_eq!((*all.item(0), *all.item(0)), (self.vcpu.get(), self.cpus[0].get() + self.cpus[1].get()));
    }
}
