//! Fairness over many slices.

use std::vec::Vec;

use super::machine::Machine;
use super::{cpu, vcpu};
use crate::Scheduler;

/// A slice, in ticks.
const SLICE: u64 = 10;
/// Offset between the CPUs' slice ends.
const STAGGER: u64 = 3;

/// Runs the machine for a number of slices, with slice timers on contended CPUs only, as a hypervisor does. A
/// vCPU in `sleepers` has no work: it sits in WFI, which traps only on a contended CPU.
fn run(machine: &mut Machine, slices: u64, sleepers: &[usize]) -> Vec<u64> {
    for _ in 0..slices * SLICE {
        machine.now += 1;
        for number in 0..machine.cpus {
            let id = cpu(number);
            if !machine.scheduler.contended(id) {
                continue;
            }
            if machine.current(number).is_some_and(|index| sleepers.contains(&index)) {
                machine.step(id, Scheduler::block);
            } else if (machine.now + number as u64 * STAGGER).is_multiple_of(SLICE) {
                machine.step(id, Scheduler::slice_end);
            }
        }
        machine.take_kicks();
    }
    machine.check();
    machine.check_busy();
    (0..machine.vcpus).map(|index| machine.scheduler.times(vcpu(index), machine.now).ran).collect()
}

#[test]
fn more_vcpus_than_cpus_get_equal_time() {
    for cpus in 1..=4 {
        for vcpus in cpus + 1..=3 * cpus + 1 {
            let mut machine = Machine::busy(cpus, vcpus);
            let ran = run(&mut machine, 1500, &[]);
            let fair = 1500 * SLICE * cpus as u64 / vcpus as u64;
            assert_eq!(ran.iter().sum::<u64>(), 1500 * SLICE * cpus as u64, "no CPU idled");
            for ran in &ran {
                let off = ran.abs_diff(fair);
                // Timers without jitter can stay in phase with the rotation: hence this tolerance.
                assert!(off * 8 <= fair, "{cpus} CPUs, {vcpus} vCPUs: {ran} of {fair}");
            }
        }
    }
}

#[test]
fn as_many_vcpus_as_cpus_do_not_migrate() {
    let mut machine = Machine::busy(4, 4);
    let before: Vec<_> = (0..4).map(|number| machine.current(number)).collect();
    run(&mut machine, 100, &[]);
    let after: Vec<_> = (0..4).map(|number| machine.current(number)).collect();
    assert_eq!(before, after);
    assert!((0..4).all(|number| !machine.scheduler.contended(cpu(number))));
}

#[test]
fn a_guest_in_untrapped_wfi_does_not_keep_a_cpu() {
    // vCPUs 2 and 3 sleep; the scheduler learns it only when their CPUs become contended.
    let mut machine = Machine::busy(2, 4);
    let ran = run(&mut machine, 1000, &[2, 3]);
    for index in [0, 1] {
        assert!(ran[index] * 100 > 1000 * SLICE * 98, "vCPU {index} ran {}", ran[index]);
    }
}

#[test]
fn a_pinned_vcpu_does_not_prevent_balancing() {
    // vCPU 0 is pinned to CPU 0; the two others may also use CPU 1.
    let mut machine = Machine::new(2, &[0b01, 0b11, 0b11]);
    for index in 0..3 {
        let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
        machine.placed(Some(placement));
    }
    machine.take_kicks();
    let ran = run(&mut machine, 1500, &[]);
    assert_eq!(ran.iter().sum::<u64>(), 2 * 1500 * SLICE);
    // Each gets at least half of CPU 0.
    assert!(ran.iter().all(|ran| ran * 100 >= 1500 * SLICE * 49), "{ran:?}");
}

#[test]
fn frequent_wakeups_do_not_preempt_others() {
    // vCPU 0 computes; 1 to 3 wake and block all the time, on the same CPU.
    let mut machine = Machine::busy(1, 4);
    let mut since = 0;
    for _ in 0..1000 {
        machine.now += 1;
        for index in 1..4 {
            machine.wake(index);
        }
        machine.take_kicks();
        let sleeps = machine.current(0) != Some(0);
        let operation = if sleeps { Scheduler::block } else { Scheduler::slice_end };
        machine.step(cpu(0), operation);
        since = if machine.current(0) == Some(0) { 0 } else { since + 1 };
        assert!(since <= 6, "woken while vCPU 0 ran, each may run once before it");
    }
}

#[test]
fn load_spreads_to_idle_cpus() {
    let mut machine = Machine::new(4, &[0b1111; 8]);
    // All last ran on CPU 0, and the other CPUs are kept busy until all are in its queue.
    for index in 0..8 {
        machine.scheduler.lock_vcpu(vcpu(index))[vcpu(index)].last = Some(cpu(0));
    }
    (0..4).for_each(|number| machine.scheduler.lock_all().shared().set_idle(cpu(number), false));
    for index in 0..8 {
        let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
        machine.placed(Some(placement));
    }
    (1..4).for_each(|number| machine.scheduler.lock_all().shared().set_idle(cpu(number), true));
    machine.take_kicks();
    run(&mut machine, 20, &[]);
    for number in 0..4 {
        assert_eq!(machine.scheduler.lock_all().load_of(cpu(number)).get(), 2, "two vCPUs on each CPU");
    }
}
