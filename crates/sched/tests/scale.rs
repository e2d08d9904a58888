//! The scheduler's policy on many CPUs, with the maximum number of VMs, in simulated time.

#[path = "../examples/simulate/machine.rs"]
mod machine;

use machine::{BUSY, MIXED, Machine, Outcome, Plan, SERVERS, SLICE};
use stile_board::MAX_VMS;
use stile_sched::CPUS;

fn run(cpus: usize, plan: Plan, time: u64) -> Outcome {
    Machine::run(&Plan { cpus, time, ..plan })
}

/// All VMs that there may be, with 32 vCPUs each, all busy, on all CPUs: no CPU is idle, and each VM gets its share.
#[test]
fn as_many_vms_as_there_may_be_share_all_cpus() {
    let most = Plan { vms: MAX_VMS, vcpus: 32, ..BUSY };
    // A vCPU's slices are 320 ms apart: each has some 15.
    let outcome = run(CPUS, most, 5_000_000);
    assert_eq!(outcome.ran.iter().sum::<u64>(), outcome.capacity);
    let fair = outcome.capacity / outcome.ran.len() as u64;
    let worst = outcome.ran.iter().map(|ran| ran.abs_diff(fair)).max();
    assert!(worst.is_some_and(|worst| worst <= fair / 10), "{worst:?} of {fair}");
}

/// With half of the CPUs' time wanted, wake-ups find an idle CPU more easily with more CPUs, and no CPU has more to do for it.
#[test]
fn more_cpus_do_not_slow_wake_ups_down() {
    let (few, many) = (run(2, SERVERS, 2_000_000), run(CPUS, SERVERS, 200_000));
    assert!(many.latency(0.99) <= few.latency(0.99), "{} and {}", many.latency(0.99), few.latency(0.99));
    let per_cpu = |outcome: &Outcome| outcome.rate(outcome.operations);
    assert!(per_cpu(&many) <= 1.1 * per_cpu(&few), "{} and {}", per_cpu(&many), per_cpu(&few));
    // At most one migration for each wake-up.
    assert!(many.migrations <= many.latencies.len() as u64);
}

/// Beside an equal number of VMs that never sleep, with four times as many vCPUs as CPUs.
#[test]
fn wake_ups_beside_busy_vms_wait_a_few_slices() {
    for cpus in [2, 8, CPUS] {
        let outcome = run(cpus, MIXED, 16_000_000 / cpus as u64);
        assert!(outcome.latency(0.99) <= 3 * SLICE, "{cpus} CPUs: {}", outcome.latency(0.99));
        assert!(outcome.ran.iter().sum::<u64>() * 100 >= outcome.capacity * 99);
    }
}
