//! Single rules of the policy.

use proptest::prelude::*;

use super::machine::Machine;
use super::{cpu, cpus, number, vcpu};
use crate::id::VmSet;
use crate::{CPUS, CpuId, Kicks, Loading, Next, Placement, Scheduler, StartError, State, Switch, Times, VCPUS, VcpuId};
use stile_board::{MAX_VCPUS, MAX_VMS};

fn next(switch: Switch) -> Option<(usize, Loading)> {
    switch.next.map(|Next { vcpu, loading }| (number(vcpu), loading))
}

#[test]
fn identifiers_are_range_checked() {
    assert_eq!(CpuId::new(CPUS), None);
    assert_eq!(VcpuId::new(MAX_VMS as u8, 0), None);
    assert_eq!(u8::try_from(MAX_VCPUS).ok().and_then(|vcpu| VcpuId::new(0, vcpu)), None);
    assert_eq!(VcpuId::from_index(VCPUS), None);
    let (vm, vcpu) = ((MAX_VMS - 1) as u8, (MAX_VCPUS - 2) as u8);
    let last = VcpuId::new(vm, vcpu).expect("in range");
    assert_eq!((last.vm(), last.vcpu(), last.index()), (vm, vcpu, VCPUS - 2));
    assert_eq!(VcpuId::from_index(last.index()), Some(last));
    assert_eq!(size_of::<Option<VcpuId>>(), size_of::<VcpuId>());
}

#[test]
fn siblings_are_vcpus_of_one_vm() {
    let id = |vm, vcpu| VcpuId::new(vm, vcpu).expect("in range");
    let (last_vm, last_vcpu) = ((MAX_VMS - 1) as u8, (MAX_VCPUS - 1) as u8);
    assert!(id(0, 0).is_sibling_of(id(0, last_vcpu)) && id(last_vm, 1).is_sibling_of(id(last_vm, last_vcpu)));
    assert!(!id(0, last_vcpu).is_sibling_of(id(1, 0)) && !id(last_vm, 0).is_sibling_of(id(last_vm - 64, 0)));
}

proptest! {
    #[test]
    fn sets_of_vms(vms in proptest::collection::btree_set(0..MAX_VMS, 0..5), other in 0..MAX_VMS) {
        let mut set = VmSet::EMPTY;
        vms.iter().for_each(|&vm| set.insert(vm));
        prop_assert!(set.iter().eq(vms.iter().copied()));
        prop_assert_eq!((set.is_empty(), set.is_several(), set.first()), (vms.is_empty(), vms.len() > 1, vms.first().copied()));
        prop_assert_eq!(set.contains(other), vms.contains(&other));
        let after = vms.range(other + 1..).chain(vms.range(..=other));
        prop_assert!(set.iter_after(other).eq(after.copied()));
        let mut others = VmSet::EMPTY;
        others.insert(other);
        prop_assert_eq!(set.and(others).contains(other), vms.contains(&other));
        set.remove(other);
        prop_assert!(set.iter().eq(vms.iter().copied().filter(|&vm| vm != other)));
    }
}

#[test]
fn a_vcpu_that_blocks_alone_is_neither_put_nor_loaded() {
    let mut machine = Machine::busy(2, 2);
    assert_eq!(machine.current(1), Some(1));
    assert_eq!(next(machine.act(cpu(1), Scheduler::block)), None);
    assert_eq!(machine.scheduler.loaded(cpu(1)), Some(vcpu(1)));
    let placement = machine.scheduler.wake(vcpu(1), 1);
    assert_eq!(placement, Some(Placement { cpu: cpu(1), kick: true }));
    let switch = machine.act(cpu(1), Scheduler::pick_next);
    assert_eq!(next(switch), Some((1, Loading::Loaded)));
    assert!(!switch.contended);
}

#[test]
fn a_woken_vcpu_goes_to_its_last_cpu_or_an_idle_one() {
    let mut machine = Machine::busy(3, 2);
    // vCPU 1 is blocked; CPU 1 runs 2 and then idles, with 2 still loaded.
    machine.step(cpu(1), Scheduler::block);
    machine.scheduler.configure(vcpu(2), cpus(0b010)).expect("CPU 1 is online");
    let placement = machine.scheduler.start(vcpu(2), 0).expect("it is off");
    machine.placed(Some(placement));
    machine.take_kicks();
    // Its last CPU is busy: it goes to the idle one.
    let placement = machine.scheduler.wake(vcpu(1), 0);
    assert_eq!(placement, Some(Placement { cpu: cpu(2), kick: true }));
    machine.placed(placement);
    machine.take_kicks();
    // Its last CPU is idle, and preferred to other idle ones.
    machine.step(cpu(2), Scheduler::block);
    machine.step(cpu(1), Scheduler::off);
    assert_eq!(machine.scheduler.wake(vcpu(1), 0).map(|placement| placement.cpu), Some(cpu(2)));
}

#[test]
fn without_an_idle_cpu_it_queues_on_its_last_cpu_and_kicks_once() {
    let mut machine = Machine::busy(1, 1);
    for index in [1, 2] {
        machine.scheduler.configure(vcpu(index), cpus(1)).expect("CPU 0 is online");
    }
    // CPU 0 runs one vCPU without a slice timer: it must be kicked.
    let placement = machine.scheduler.start(vcpu(1), 0);
    assert_eq!(placement, Ok(Placement { cpu: cpu(0), kick: true }));
    assert!(machine.scheduler.contended(cpu(0)));
    // Its kick is already pending.
    let placement = machine.scheduler.start(vcpu(2), 0);
    assert_eq!(placement, Ok(Placement { cpu: cpu(0), kick: false }));
    let switch = machine.act(cpu(0), Scheduler::pick_next);
    assert_eq!(next(switch), Some((0, Loading::Loaded)));
    assert!(switch.contended);
}

#[test]
fn new_vcpus_avoid_cpus_with_a_blocked_vcpu_loaded() {
    let mut machine = Machine::busy(2, 1);
    machine.step(cpu(0), Scheduler::block);
    machine.scheduler.configure(vcpu(1), cpus(0b11)).expect("both are online");
    let placement = machine.scheduler.start(vcpu(1), 0);
    assert_eq!(placement, Ok(Placement { cpu: cpu(1), kick: true }));
}

#[test]
fn slices_go_round_robin() {
    let mut machine = Machine::busy(1, 3);
    for round in 1..10 {
        let switch = machine.act(cpu(0), Scheduler::slice_end);
        let (ran, runs) = ((round - 1) % 3, round % 3);
        assert_eq!(next(switch), Some((runs, Loading::Replace(vcpu(ran)))));
        assert!(switch.contended);
    }
}

#[test]
fn an_uncontended_slice_continues() {
    let mut machine = Machine::busy(1, 1);
    let switch = machine.act(cpu(0), Scheduler::slice_end);
    assert_eq!(next(switch), Some((0, Loading::Loaded)));
    assert!(!switch.contended);
}

#[test]
fn an_idle_cpu_steals() {
    let mut machine = Machine::busy(2, 4);
    // CPU 1 has vCPUs 1 and 3; both block, one after the other.
    assert_eq!(next(machine.act(cpu(1), Scheduler::block)), Some((3, Loading::Replace(vcpu(1)))));
    let switch = machine.act(cpu(1), Scheduler::block);
    assert_eq!(next(switch), Some((2, Loading::Replace(vcpu(3)))));
    assert!(!machine.scheduler.contended(cpu(0)));
    machine.check();
}

#[test]
fn nothing_is_stolen_from_a_cpu_with_a_pending_kick() {
    let mut machine = Machine::new(2, &[0b11]);
    let placement = machine.scheduler.start(vcpu(0), 0).expect("it is off");
    assert_eq!(placement, Placement { cpu: cpu(0), kick: true });
    machine.placed(Some(placement));
    // CPU 1 happens to reschedule, too.
    assert_eq!(next(machine.act(cpu(1), Scheduler::pick_next)), None);
    machine.take_kicks();
    assert_eq!(machine.current(0), Some(0));
}

#[test]
fn a_vcpu_is_migrated_at_most_once_before_it_runs() {
    // On CPU 0, only vCPU 1 may leave. CPU 1 has less load, and right after the migration more.
    let mut machine = Machine::new(2, &[0b01, 0b11, 0b01, 0b01, 0b10, 0b10, 0b10, 0b10]);
    for index in [4, 0, 2, 3] {
        let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
        machine.placed(Some(placement));
        machine.take_kicks();
    }
    machine.scheduler.lock_vcpu(vcpu(1))[vcpu(1)].last = Some(cpu(0));
    let placement = machine.scheduler.start(vcpu(1), 0).expect("it is off");
    machine.placed(Some(placement));
    machine.step(cpu(0), Scheduler::slice_end);
    assert_eq!(machine.scheduler.state(vcpu(1)), State::Ready(cpu(1)));
    for index in [0, 2, 3] {
        assert_eq!(machine.scheduler.stop(vcpu(index), 0).is_some(), machine.current(0) == Some(index));
    }
    for index in [5, 6, 7] {
        let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
        machine.placed(Some(placement));
    }
    // It must run on CPU 1 before CPU 0, which has one vCPU left to stop, gets it back.
    machine.step(cpu(1), Scheduler::slice_end);
    assert_eq!(machine.current(1), Some(1));
}

#[test]
fn pinned_vcpus_are_not_stolen() {
    let mut machine = Machine::new(2, &[0b01, 0b01]);
    for index in 0..2 {
        let placement = machine.scheduler.start(vcpu(index), 0).expect("it is off");
        machine.placed(Some(placement));
    }
    machine.take_kicks();
    assert_eq!(next(machine.act(cpu(1), Scheduler::pick_next)), None);
    for _ in 0..20 {
        assert_eq!(machine.act(cpu(0), Scheduler::slice_end).kicks, Kicks::NONE);
    }
}

#[test]
fn a_wake_before_the_block_is_latched() {
    let mut machine = Machine::busy(1, 1);
    let placement = machine.scheduler.wake(vcpu(0), 0);
    assert_eq!(placement, Some(Placement { cpu: cpu(0), kick: true }));
    assert_eq!(next(machine.act(cpu(0), Scheduler::block)), Some((0, Loading::Loaded)));
    // The latched wake-up is consumed: now it blocks.
    assert_eq!(next(machine.act(cpu(0), Scheduler::block)), None);
}

#[test]
fn a_wake_in_an_earlier_slice_does_not_prevent_blocking() {
    let mut machine = Machine::busy(1, 2);
    machine.wake(0);
    machine.step(cpu(0), Scheduler::slice_end);
    machine.step(cpu(0), Scheduler::slice_end);
    assert_eq!(machine.current(0), Some(0));
    // It was rescheduled since, and has taken the interrupt.
    machine.step(cpu(0), Scheduler::block);
    assert_eq!(machine.scheduler.state(vcpu(0)), State::Blocked);
}

#[test]
fn a_handled_kick_does_not_prevent_blocking() {
    let mut machine = Machine::busy(1, 1);
    machine.wake(0);
    machine.take_kicks();
    assert_eq!(next(machine.act(cpu(0), Scheduler::block)), None);
}

#[test]
fn a_woken_vcpu_leaves_its_contended_cpu_after_the_put() {
    let mut machine = Machine::new(3, &[0b001, 0b111, 0b001]);
    // CPU 0 sleeps with vCPU 1 loaded.
    let placement = machine.scheduler.start(vcpu(1), 0).expect("it is off");
    machine.placed(Some(placement));
    machine.take_kicks();
    machine.step(cpu(0), Scheduler::block);
    // vCPU 2 is pinned to CPU 0. Before that CPU handles the kick, vCPU 1 wakes up.
    let placement = machine.scheduler.start(vcpu(2), 0).expect("it is off");
    assert_eq!(placement, Placement { cpu: cpu(0), kick: true });
    machine.placed(Some(placement));
    let placement = machine.scheduler.wake(vcpu(1), 0);
    assert_eq!(placement, Some(Placement { cpu: cpu(0), kick: true }), "it is still loaded there, and may use other CPUs");
    // Idle CPUs can't steal it yet.
    assert_eq!(next(machine.act(cpu(1), Scheduler::pick_next)), None);
    // CPU 0 puts it and migrates it.
    let switch = machine.act(cpu(0), Scheduler::pick_next);
    assert_eq!(next(switch), Some((2, Loading::Replace(vcpu(1)))));
    assert_eq!(switch.kicks, Kicks { other: Some(cpu(1)), own: None });
    assert!(!switch.contended);
    assert_eq!(next(machine.act(cpu(1), Scheduler::pick_next)), Some((1, Loading::Empty)));
}

#[test]
fn a_powered_off_vcpu_is_not_put() {
    let mut machine = Machine::busy(1, 2);
    let switch = machine.act(cpu(0), Scheduler::off);
    assert_eq!(next(switch), Some((1, Loading::Empty)));
    assert_eq!(machine.scheduler.state(vcpu(0)), State::Off);
    // Blocked and loaded: it is off only after the CPU has released it, and its next start loads it.
    machine.step(cpu(0), Scheduler::block);
    assert_eq!(machine.scheduler.stop(vcpu(1), 0), Some(cpu(0)));
    assert!(!machine.scheduler.all_off(0));
    assert_eq!(machine.scheduler.wake(vcpu(1), 0), None);
    assert_eq!(machine.scheduler.unpark(vcpu(1), 0), None);
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), None);
    assert!(machine.scheduler.all_off(0));
    let placement = machine.scheduler.start(vcpu(1), 0).expect("it is off");
    machine.placed(Some(placement));
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), Some((1, Loading::Empty)));
}

#[test]
fn a_running_vcpu_is_off_only_after_its_cpu_acts() {
    for operation in [Scheduler::pick_next, Scheduler::slice_end, Scheduler::yield_now, Scheduler::block, Scheduler::off] {
        let mut machine = Machine::busy(1, 1);
        assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)));
        assert_eq!(machine.scheduler.stop(vcpu(0), 0), Some(cpu(0)));
        assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)), "does not cancel the stop");
        assert_eq!(machine.scheduler.start(vcpu(0), 0), Err(StartError::NotOff));
        assert!(!machine.scheduler.all_off(0));
        assert_eq!(next(machine.act(cpu(0), operation)), None);
        assert_eq!(machine.scheduler.state(vcpu(0)), State::Off);
        assert_eq!(machine.scheduler.wake(vcpu(0), 0), None);
        // A restart clears the request.
        let placement = machine.scheduler.start(vcpu(0), 0).expect("it is off");
        machine.placed(Some(placement));
        machine.take_kicks();
        assert_eq!(next(machine.act(cpu(0), Scheduler::slice_end)), Some((0, Loading::Loaded)));
    }
}

#[test]
fn a_parked_vcpu_never_runs() {
    let mut machine = Machine::busy(1, 1);
    assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)));
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), None);
    assert_eq!(machine.scheduler.state(vcpu(0)), State::Parked);
    assert_eq!(machine.scheduler.wake(vcpu(0), 0), None);
    assert_eq!(machine.scheduler.start(vcpu(0), 0), Err(StartError::NotOff));
    let placement = machine.scheduler.unpark(vcpu(0), 0);
    assert_eq!(placement, Some(Placement { cpu: cpu(0), kick: true }));
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), Some((0, Loading::Empty)), "it was put");
    // Cancelled before the CPU handled it.
    assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)));
    assert_eq!(machine.scheduler.unpark(vcpu(0), 0), None);
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), Some((0, Loading::Loaded)));
}

/// A blocked vCPU that is still loaded is parked only after its CPU has put it, so that nothing of it is left on any CPU.
#[test]
fn a_blocked_vcpu_is_put_before_it_is_parked() {
    let mut machine = Machine::busy(1, 1);
    machine.step(cpu(0), Scheduler::block);
    assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)));
    assert!(!machine.scheduler.all_put(0));
    assert_eq!(machine.scheduler.wake(vcpu(0), 0), None);
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), None);
    assert!(machine.scheduler.all_put(0) && !machine.scheduler.all_off(0));
    // No registers to put: immediately.
    assert_eq!(machine.scheduler.park(vcpu(0), 0), None);
    // Resumed before its CPU acted: it is loaded there still.
    let placement = machine.scheduler.unpark(vcpu(0), 0);
    machine.placed(placement);
    machine.take_kicks();
    machine.step(cpu(0), Scheduler::block);
    assert_eq!(machine.scheduler.park(vcpu(0), 0), Some(cpu(0)));
    let placement = machine.scheduler.unpark(vcpu(0), 0);
    assert_eq!(placement, Some(Placement { cpu: cpu(0), kick: true }));
    assert_eq!(next(machine.act(cpu(0), Scheduler::pick_next)), Some((0, Loading::Loaded)));
}

#[test]
fn a_vcpu_without_a_cpu_is_not_started() {
    let machine = Machine::busy(1, 1);
    assert_eq!(machine.scheduler.start(vcpu(9), 0), Err(StartError::NoCpu));
    assert_eq!(machine.scheduler.configure(vcpu(9), cpus(0b10)), Err(StartError::NoCpu));
    assert_eq!(machine.scheduler.configure(vcpu(0), cpus(0b1)), Err(StartError::NotOff));
}

#[test]
fn times_account_running_and_waiting() {
    let mut machine = Machine::busy(1, 2);
    machine.now = 10;
    machine.step(cpu(0), Scheduler::slice_end);
    machine.now = 15;
    machine.step(cpu(0), Scheduler::block);
    let times = |index, now| machine.scheduler.times(vcpu(index), now);
    assert_eq!(times(0, 18), Times { ran: 13, waited: 5 });
    assert_eq!(times(1, 18), Times { ran: 5, waited: 10 });
}

#[test]
fn all_that_wait_for_a_cpu_go_to_idle_ones() {
    let mut machine = Machine::new(3, &[0b111, 0b001, 0, 0, 0, 0, 0, 0, 0b001]);
    let start = |machine: &mut Machine, index: usize| {
        let placement = machine.scheduler.start(vcpu(index), machine.now).expect("it is off");
        machine.placed(Some(placement));
    };
    // CPU 0 is vCPU 1's last one, which may use all now. CPU 0 idles, with vCPU 0 loaded.
    start(&mut machine, 1);
    machine.settle();
    machine.step(cpu(0), Scheduler::off);
    machine.scheduler.configure(vcpu(1), cpus(0b111)).expect("it is off");
    start(&mut machine, 0);
    machine.settle();
    machine.step(cpu(0), Scheduler::block);
    // Both become ready there, and a vCPU of another VM that is bound to it, before it handles its kick. The latter runs there.
    start(&mut machine, 1);
    machine.wake(0);
    start(&mut machine, 8);
    assert!([0, 1, 8].iter().all(|&index| machine.scheduler.state(vcpu(index)) == State::Ready(cpu(0))));
    machine.settle();
    assert_eq!([0, 1, 2].map(|number| machine.current(number)), [Some(8), Some(1), Some(0)]);
    assert_eq!(machine.scheduler.deadline(cpu(0)), u64::MAX);
    machine.check_busy();
}
