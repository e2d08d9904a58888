//! Other CPUs' actions between two steps of an operation.

use std::boxed::Box;

use super::machine::Machine;
use super::{VCPUS_OF_VM, cpu, cpus, vcpu};
use crate::{CpuSet, Kicks, Loading, Next, Placement, Scheduler};

/// Weight, cap and affinity of a VM.
type Vm = (u16, Option<(u64, u64)>, u64);

/// A scheduler of VMs with one vCPU each, which have been started in this order.
fn scheduler<const N: usize>(cpus_online: usize, vms: [Vm; N]) -> Box<Scheduler> {
    let scheduler = Box::new(Scheduler::new());
    (0..cpus_online).for_each(|number| scheduler.cpu_online(cpu(number)));
    for (vm, (weight, cap, allowed)) in vms.into_iter().enumerate() {
        scheduler.configure(vcpu(vm * VCPUS_OF_VM), cpus(allowed)).expect("it is off");
        scheduler.set_share(vm as u8, weight, cap);
    }
    for vm in 0..N {
        let placement = scheduler.start(vcpu(vm * VCPUS_OF_VM), 0).expect("it is off");
        if placement.kick {
            let _ = scheduler.pick_next(placement.cpu, 0);
        }
    }
    scheduler
}

/// The loaded vCPU migrates, so that another one must replace it, and other CPUs use up that one's cap.
#[test]
fn a_migrated_vcpu_is_replaced_though_the_cap_of_the_next_one_is_used_up() {
    let scheduler = scheduler(2, [(100, None, 0b11), (1, None, 0b10), (100, Some((50, 1000)), 0b01)]);
    let (mine, next) = (vcpu(0), vcpu(2 * VCPUS_OF_VM));
    assert_eq!(scheduler.current(cpu(0)), Some(mine));
    let now = 10;
    let mut locked = scheduler.lock(cpu(0));
    // As `slice_end` does.
    let ended = locked.requeue(cpu(0), false, now);
    let kick = locked.balance(cpu(0), ended, now);
    assert_eq!((ended, kick), (Some(mine), Some(cpu(1))));
    while locked.vm(2).with_cap(|cap| cap.grant(now).is_some()) == Some(true) {}
    let switch = locked.switch(cpu(0), kick, now);
    assert_eq!(switch.next, Some(Next { vcpu: next, loading: Loading::Replace(mine) }));
    assert_eq!(locked.deadline(cpu(0)), now, "it runs on debt, and stops at once");
    drop(locked);
    let back = Next { vcpu: mine, loading: Loading::Replace(next) };
    assert_eq!(scheduler.pick_next(cpu(0), now).next, Some(back), "it is stolen back, now that it is put");
}

/// A vCPU joins others that wait: a CPU that only it may use, and that has just looked for work, is found by the CPU that is kicked.
#[test]
fn a_cpu_whose_waiting_vcpus_may_use_more_cpus_is_kicked() {
    let scheduler = scheduler(2, [(100, None, 0b01), (100, None, 0b10), (100, None, 0b01)]);
    scheduler.configure(vcpu(1), cpus(0b11)).expect("it is off");
    assert!(scheduler.contended(cpu(0)) && !scheduler.contended(cpu(1)));
    // CPU 1 looks for work, after vCPU 1 found it busy and before that waits for CPU 0.
    let first = scheduler.lock(cpu(1));
    let placement = scheduler.start(vcpu(1), 1);
    drop(first);
    assert_eq!(placement, Ok(Placement { cpu: cpu(0), kick: true }));
    assert_eq!(scheduler.block(cpu(1), 2).next.map(|next| next.vcpu), Some(vcpu(1)), "it is stolen");
}

/// A CPU is idle for others before it looks for work, so that one of two CPUs sees the other.
#[test]
fn a_kicked_cpu_spreads_what_an_idle_one_did_not_see() {
    let scheduler = scheduler(2, [(100, None, 0b01), (100, None, 0b01)]);
    let _ = scheduler.pick_next(cpu(1), 0);
    scheduler.configure(vcpu(1), cpus(0b11)).expect("it is off");
    let idle = scheduler.lock(cpu(1));
    let placement = scheduler.start(vcpu(1), 1);
    // CPU 1 is idle, but its lock is held.
    assert_eq!(placement, Ok(Placement { cpu: cpu(0), kick: true }));
    assert!(scheduler.lock(cpu(0)).may_spread(cpu(0)));
    assert_eq!(scheduler.pick_next(cpu(0), 2).kicks, Kicks { other: None, own: Some(cpu(0)) }, "it tries again");
    drop(idle);
    assert_eq!(scheduler.pick_next(cpu(0), 3).kicks, Kicks { other: Some(cpu(1)), own: None });
    assert!(!scheduler.lock(cpu(0)).may_spread(cpu(0)));
    assert_eq!(scheduler.pick_next(cpu(1), 4).next.map(|next| next.vcpu), Some(vcpu(1)));
}

/// Two vCPUs wait for a CPU because the lock of an idle one was taken: both get a CPU once it is free.
#[test]
fn a_cpu_spreads_all_that_wait_because_of_a_lock() {
    let mut machine = Machine::new(3, &[0b111, 0b111, 0b111]);
    assert!(machine.start(0));
    machine.take_kicks();
    // The first idle CPU.
    machine.locked = cpu(1).into();
    assert!(machine.start(1));
    assert!(machine.start(2));
    machine.locked = CpuSet::EMPTY;
    machine.settle();
    machine.check();
    machine.check_busy();
}
