//! Bounds of kicks: other VMs' wake-ups interrupt a vCPU a few times in each of its turns, however often these VMs wake sleepers and move
//! them to other CPUs.

use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::machine::{Machine, SLICE};
use super::{VCPUS_OF_VM, cpu};
use crate::{CpuSet, Scheduler};

/// Operation of an attacker on a CPU that the honest VM does not use.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Wakes a sleeper.
    Wake(usize),
    /// Puts the running vCPU to sleep: its CPU steals a vCPU that waits elsewhere.
    Block,
    /// Wakes a sleeper, then puts the running vCPU to sleep.
    Pass(usize),
    /// Ends the slice.
    SliceEnd,
}

fn act() -> impl Strategy<Value = Act> {
    let index = 0..64_usize;
    prop_oneof![
        2 => index.clone().prop_map(Act::Wake),
        2 => Just(Act::Block),
        4 => index.prop_map(Act::Pass),
        1 => Just(Act::SliceEnd),
    ]
}

/// Returns the greatest number of kicks in one turn of an honest vCPU on CPU 0, which never blocks. Attackers may use CPU 0 as well, and
/// block when they get it. During an operation, the locks of the CPUs in its mask, except CPU 0, are taken.
fn most_kicks(cpus: usize, attackers: usize, turns: usize, acts: &[(Act, u64)]) -> usize {
    let mut affinity = std::vec![0; VCPUS_OF_VM];
    affinity[0] = 1;
    affinity.resize(VCPUS_OF_VM * (1 + attackers), (1 << cpus) - 1);
    let mut machine = Machine::new(cpus, &affinity);
    (0..=attackers).for_each(|vm| machine.scheduler.set_share(vm as u8, 100, None));
    machine.start_all();
    let (mut most, mut kicks, mut acts) = (0, 0, acts.iter().cycle());
    for _ in 0..turns {
        while machine.current(0) != Some(0) {
            // The attacker's vCPU blocks, so that CPU 0 is its last CPU when it is woken.
            machine.step(cpu(0), if machine.current(0).is_some() { Scheduler::block } else { Scheduler::pick_next });
            machine.take_kicks();
            kicks = 0;
        }
        machine.now += SLICE / 2;
        for (step, &(act, locked)) in acts.by_ref().take(6 * VCPUS_OF_VM).enumerate() {
            let number = 1 + step % (cpus - 1);
            let attackers = VCPUS_OF_VM..machine.vcpus;
            let one = |index: usize| attackers.start + index % attackers.len();
            machine.locked = super::cpus(locked).except(cpu(0));
            match act {
                Act::Wake(index) => machine.wake(one(index)),
                Act::Pass(index) => {
                    machine.wake(one(index));
                    machine.step(cpu(number), Scheduler::block);
                }
                Act::Block => machine.step(cpu(number), Scheduler::block),
                Act::SliceEnd => machine.step(cpu(number), Scheduler::slice_end),
            }
            machine.locked = CpuSet::EMPTY;
            while machine.kicked.contains(&cpu(0)) {
                // The honest vCPU never left its CPU.
                assert_eq!(machine.current(0), Some(0));
                kicks += 1;
                machine.kicked.remove(&cpu(0));
                machine.step(cpu(0), Scheduler::pick_next);
            }
            machine.take_kicks();
            machine.check();
        }
        most = most.max(kicks);
        machine.now += SLICE;
        machine.step(cpu(0), Scheduler::slice_end);
        machine.take_kicks();
        kicks = 0;
    }
    most
}

fn attack(locks: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<(Act, u64)>> {
    prop::collection::vec((act(), locks), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(14), ..ProptestConfig::default() })]

    /// One kick sets the slice timer. A VM that may use more CPUs than the waiting ones adds one.
    #[test]
    fn wake_ups_kick_once_in_a_turn_for_each_vm(cpus in 2..=4_usize, attackers in 1..=3_usize, acts in attack(Just(0))) {
        let most = most_kicks(cpus, attackers, 20, &acts);
        prop_assert!(most <= 1 + attackers, "{most} kicks");
    }

    /// If locks of idle CPUs are not free, each vCPU that could not be placed there adds a kick to those of the test before.
    #[test]
    fn a_lock_that_is_not_free_adds_a_kick_for_each_vcpu(cpus in 2..=4_usize, attackers in 1..=3_usize, acts in attack(0..16_u64)) {
        let most = most_kicks(cpus, attackers, 20, &acts);
        prop_assert!(most <= 1 + attackers + VCPUS_OF_VM * attackers, "{most} kicks");
    }
}

/// Worst case: sleepers whose last CPU is the honest vCPU's are woken one after the other. Each is the only vCPU that waits there, and is
/// stolen by another CPU.
#[test]
fn sleepers_that_are_taken_away_kick_once() {
    let mut affinity = std::vec![0; VCPUS_OF_VM];
    affinity[0] = 1;
    affinity.resize(2 * VCPUS_OF_VM, 3);
    let mut machine = Machine::new(2, &affinity);
    (0..2).for_each(|vm| machine.scheduler.set_share(vm, 100, None));
    let (first, sleepers) = (VCPUS_OF_VM, VCPUS_OF_VM + 1..machine.vcpus);
    // The first attacker keeps CPU 1 busy, so that the sleepers run on CPU 0, while the honest vCPU sleeps.
    assert!(machine.start(0) && machine.start(first));
    machine.take_kicks();
    assert_eq!((machine.current(0), machine.current(1)), (Some(0), Some(first)));
    machine.step(cpu(0), Scheduler::block);
    for index in sleepers.clone() {
        assert!(machine.start(index));
        machine.take_kicks();
        assert_eq!(machine.current(0), Some(index));
        machine.step(cpu(0), Scheduler::block);
    }
    machine.wake(0);
    machine.take_kicks();
    let mut kicks = 0;
    for index in sleepers {
        machine.wake(index);
        kicks += usize::from(machine.kicked.contains(&cpu(0)));
        machine.take_kicks();
        machine.step(cpu(1), Scheduler::block);
        assert_eq!((machine.current(0), machine.current(1)), (Some(0), Some(index)));
        machine.take_kicks();
        machine.check();
    }
    assert_eq!(kicks, 1);
}
