//! Random operations.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::machine::Machine;
use super::{VCPUS_OF_VM, cpu, vcpu};
use crate::{CpuSet, Scheduler, State};

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Start(usize),
    Wake(usize),
    Stop(usize),
    Park(usize),
    Unpark(usize),
    /// A CPU handles its kick, if one is pending.
    Kick(usize),
    /// All CPUs handle their kicks and deadlines.
    Kicks,
    SliceEnd(usize),
    Yield(usize),
    Block(usize),
    /// The vCPU that runs on a CPU wakes another one, and blocks.
    HandOver(usize, usize),
    Off(usize),
    /// A VM goes, if all its vCPUs are off.
    Remove(u8),
    /// Adds the VM again, with a cap or without.
    Create(u8, Option<u64>),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let vcpu = 0..64usize;
    let cpu = 0..64usize;
    prop_oneof![
        3 => vcpu.clone().prop_map(Op::Start),
        6 => vcpu.clone().prop_map(Op::Wake),
        1 => vcpu.clone().prop_map(Op::Stop),
        1 => vcpu.clone().prop_map(Op::Park),
        1 => vcpu.clone().prop_map(Op::Unpark),
        4 => (cpu.clone(), vcpu).prop_map(|(cpu, vcpu)| Op::HandOver(cpu, vcpu)),
        4 => cpu.clone().prop_map(Op::Kick),
        2 => Just(Op::Kicks),
        8 => cpu.clone().prop_map(Op::SliceEnd),
        1 => cpu.clone().prop_map(Op::Yield),
        6 => cpu.clone().prop_map(Op::Block),
        1 => cpu.prop_map(Op::Off),
        1 => (0..3u8).prop_map(Op::Remove),
        1 => (0..3u8, prop::option::weighted(0.3, 1..60u64)).prop_map(|(vm, cap)| Op::Create(vm, cap)),
    ]
}

/// A number of CPUs, and an affinity for each vCPU.
pub(super) fn shape() -> impl Strategy<Value = (usize, Vec<u64>)> {
    (1..=6usize).prop_flat_map(|cpus| {
        let all = (1u64 << cpus) - 1;
        // Those of a VM's vCPUs that may use several CPUs may use the same.
        let of_vm = prop_oneof![4 => Just(all), 1 => 1..=all];
        let pinned = prop::option::weighted(0.2, 0..cpus);
        let shape = (Just(cpus), prop::collection::vec(of_vm, 3), prop::collection::vec(pinned, 1..20));
        shape.prop_map(|(cpus, of_vm, pinned)| {
            let vms = of_vm.into_iter().flat_map(|mask| [mask; VCPUS_OF_VM]);
            (cpus, vms.zip(pinned).map(|(mask, pinned)| pinned.map_or(mask, |pinned| 1 << pinned)).collect())
        })
    })
}

pub(super) fn apply(machine: &mut Machine, op: Op) {
    let now = machine.now;
    let (cpus, vcpus) = (machine.cpus, machine.vcpus);
    match op {
        Op::Start(index) => {
            let vcpu = vcpu(index % vcpus);
            let was = machine.scheduler.state(vcpu);
            assert_eq!(machine.start(index % vcpus), was == State::Off && !machine.removed.contains_key(&vcpu.vm()));
        }
        Op::Wake(index) => machine.wake(index % vcpus),
        Op::Stop(index) => {
            let vcpu = vcpu(index % vcpus);
            match machine.scheduler.stop(vcpu, now) {
                Some(cpu) => {
                    // It runs there, or is blocked but still loaded there.
                    let state = machine.scheduler.state(vcpu);
                    assert!(
                        state == State::Running(cpu) || state == State::Parked && machine.scheduler.loaded(cpu) == Some(vcpu),
                        "{state:?}"
                    );
                    machine.kicked.insert(cpu);
                }
                None => {
                    assert_eq!(machine.scheduler.state(vcpu), State::Off);
                    machine.forget(vcpu);
                }
            }
        }
        Op::Park(index) => {
            let kick = machine.scheduler.park(vcpu(index % vcpus), now);
            machine.kicked.extend(kick);
        }
        Op::Unpark(index) => {
            let placement = machine.scheduler.unpark(vcpu(index % vcpus), now);
            machine.placed(placement);
        }
        Op::Kick(number) => {
            if machine.kicked.remove(&cpu(number % cpus)) {
                machine.step(cpu(number % cpus), Scheduler::pick_next);
            }
        }
        Op::Kicks => {
            machine.settle();
            machine.check_busy();
        }
        Op::SliceEnd(number) => machine.step(cpu(number % cpus), Scheduler::slice_end),
        Op::Yield(number) => machine.step(cpu(number % cpus), Scheduler::yield_now),
        Op::Block(number) => machine.step(cpu(number % cpus), Scheduler::block),
        Op::HandOver(number, index) => drop(machine.hand_over(cpu(number % cpus), vcpu(index % vcpus), true)),
        Op::Off(number) => machine.step(cpu(number % cpus), Scheduler::off),
        Op::Remove(vm) => machine.remove(vm),
        Op::Create(vm, cap) => machine.create(vm, cap.map(|quota| (quota, 20))),
    }
}

/// A weight and a cap, in ticks of a period of 20, for each VM.
pub(super) fn shares() -> impl Strategy<Value = Vec<(u16, Option<u64>)>> {
    prop::collection::vec((1..=10_000u16, prop::option::weighted(0.3, 1..60u64)), 1..=8)
}

/// Ticks between two operations: none, one, or very many.
fn jump() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0u64), 4 => Just(1), 2 => 0..100u64, 1 => 0..1u64 << 40, 1 => 0..1u64 << 58]
}

/// Applies operations, checks every invariant after each, and that no CPU idles in vain at the end.
fn apply_all(machine: &mut Machine, ops: Vec<Op>) {
    for op in ops {
        machine.now += 1;
        apply(machine, op);
        machine.check();
    }
    machine.settle();
    machine.check();
    machine.check_busy();
}

/// 96 cases by default, or PROPTEST_CASES if it is set.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 96 };
    ProptestConfig { cases, ..default }
}

proptest! {
    #![proptest_config(cases())]

    /// A clock that stands still or jumps ahead, by up to nine years at 1 GHz: the policy may be unfair then, but all invariants hold.
    #[test]
    fn invariants_hold_whatever_the_clock((cpus, affinity) in shape(), shares in shares(), ops in prop::collection::vec((op(), jump()), 0..200)) {
        let mut machine = Machine::new(cpus, &affinity);
        for (vm, (weight, cap)) in (0..).zip(shares) {
            machine.scheduler.set_share(vm, weight, cap.map(|quota| (quota, 20)));
        }
        for (op, jump) in ops {
            machine.now += jump;
            apply(&mut machine, op);
            machine.check();
        }
    }

    /// VMs are added and removed while others run, which changes whether shares are accounted.
    #[test]
    fn invariants_hold_as_vms_come_and_go((cpus, affinity) in shape(), ops in prop::collection::vec(op(), 0..400)) {
        let mut machine = Machine::new(cpus, &affinity);
        machine.start_all();
        for vm in 1..3 {
            machine.stop_all(vm);
            machine.remove(vm);
            machine.check();
        }
        apply_all(&mut machine, ops);
    }

    /// Operations do without the locks that other CPUs hold: all invariants hold, and once the kicks are handled, no CPU idles in vain.
    #[test]
    fn invariants_hold_while_others_hold_locks(
        (cpus, affinity) in shape(),
        shares in shares(),
        ops in prop::collection::vec((op(), 0..64u64), 0..200),
    ) {
        let mut machine = Machine::new(cpus, &affinity);
        for (vm, (weight, cap)) in (0..).zip(shares) {
            machine.scheduler.set_share(vm, weight, cap.map(|quota| (quota, 20)));
        }
        for (op, locked) in ops {
            machine.now += 1;
            // Operations on several vCPUs or CPUs end with all locks free.
            let is_one = matches!(op, Op::Start(_) | Op::Wake(_) | Op::Kick(_) | Op::SliceEnd(_) | Op::Yield(_) | Op::Block(_) | Op::Off(_));
            machine.locked = if is_one { super::cpus(locked) } else { CpuSet::EMPTY };
            apply(&mut machine, op);
            machine.locked = CpuSet::EMPTY;
            machine.check();
        }
        machine.settle();
        machine.check();
        machine.check_busy();
    }

    /// No vCPU is ever in two places, no ready vCPU is lost, and every counter that the policy uses is
    /// correct.
    #[test]
    fn invariants_hold((cpus, affinity) in shape(), shares in shares(), ops in prop::collection::vec(op(), 0..200)) {
        let mut machine = Machine::new(cpus, &affinity);
        for (vm, (weight, cap)) in (0..).zip(shares) {
            machine.scheduler.set_share(vm, weight, cap.map(|quota| (quota, 20)));
        }
        apply_all(&mut machine, ops);
    }
}
