//! Random operations.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::machine::Machine;
use super::{cpu, vcpu};
use crate::{Scheduler, State};

#[derive(Clone, Copy, Debug)]
enum Op {
    Start(usize),
    Wake(usize),
    Stop(usize),
    Park(usize),
    Unpark(usize),
    /// A CPU takes its kick, if it has been sent one.
    Kick(usize),
    /// All of them do.
    Kicks,
    SliceEnd(usize),
    Yield(usize),
    Block(usize),
    Off(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let vcpu = 0..64usize;
    let cpu = 0..64usize;
    prop_oneof![
        3 => vcpu.clone().prop_map(Op::Start),
        6 => vcpu.clone().prop_map(Op::Wake),
        1 => vcpu.clone().prop_map(Op::Stop),
        1 => vcpu.clone().prop_map(Op::Park),
        1 => vcpu.prop_map(Op::Unpark),
        4 => cpu.clone().prop_map(Op::Kick),
        2 => Just(Op::Kicks),
        8 => cpu.clone().prop_map(Op::SliceEnd),
        1 => cpu.clone().prop_map(Op::Yield),
        6 => cpu.clone().prop_map(Op::Block),
        1 => cpu.prop_map(Op::Off),
    ]
}

/// Numbers of CPUs, and an affinity for each vCPU.
fn shape() -> impl Strategy<Value = (usize, Vec<u64>)> {
    (1..=6usize).prop_flat_map(|cpus| {
        let all = (1u64 << cpus) - 1;
        let affinity = prop_oneof![
            4 => Just(all),
            1 => (0..cpus).prop_map(|pinned| 1 << pinned),
            1 => 1..=all,
        ];
        (Just(cpus), prop::collection::vec(affinity, 1..12))
    })
}

fn apply(machine: &mut Machine, op: Op) {
    let now = machine.now;
    let (cpus, vcpus) = (machine.cpus, machine.vcpus);
    match op {
        Op::Start(index) => {
            let vcpu = vcpu(index % vcpus);
            let was = machine.scheduler.state(vcpu);
            let placement = machine.scheduler.start(vcpu, now);
            assert_eq!(placement.is_ok(), was == State::Off);
            machine.placed(placement.ok());
        }
        Op::Wake(index) => machine.wake(index % vcpus),
        Op::Stop(index) => {
            let vcpu = vcpu(index % vcpus);
            match machine.scheduler.stop(vcpu, now) {
                Some(cpu) => {
                    // It runs there, or sleeps in that CPU's registers.
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
            machine.take_kicks();
            machine.check_busy();
        }
        Op::SliceEnd(number) => machine.step(cpu(number % cpus), Scheduler::slice_end),
        Op::Yield(number) => machine.step(cpu(number % cpus), Scheduler::yield_now),
        Op::Block(number) => machine.step(cpu(number % cpus), Scheduler::block),
        Op::Off(number) => machine.step(cpu(number % cpus), Scheduler::off),
    }
}

/// Whether the operation is one that ends the turn of the vCPU that runs on this CPU.
fn ends_turn(op: Op, cpus: usize) -> Option<usize> {
    match op {
        Op::SliceEnd(number) | Op::Yield(number) | Op::Block(number) | Op::Off(number) => Some(number % cpus),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// No vCPU is ever in two places; no work is forgotten; and who waits comes closer to its turn
    /// whatever others do.
    #[test]
    fn order_is_kept((cpus, affinity) in shape(), ops in prop::collection::vec(op(), 0..200)) {
        let mut machine = Machine::new(cpus, &affinity);
        for op in ops {
            machine.now += 1;
            let before: Vec<_> = (0..machine.vcpus).map(|index| machine.ahead(index)).collect();
            let states: Vec<_> =
                (0..machine.vcpus).map(|index| machine.scheduler.state(vcpu(index))).collect();
            let ran = ends_turn(op, cpus).and_then(|number| machine.current(number));
            apply(&mut machine, op);
            machine.check();

            let ended = ends_turn(op, cpus).filter(|number| {
                // A turn was there to end, and did: not so if the vCPU had been woken.
                ran.is_some() && machine.current(*number) != ran
            });
            for (index, before) in before.into_iter().enumerate() {
                let (Some(before), Some(after)) = (before, machine.ahead(index)) else { continue };
                let on = ended.is_some_and(|number| states[index] == State::Ready(cpu(number)));
                let limit = if on { before - 1 } else { before };
                prop_assert!(after <= limit, "vCPU {index}: {before} were ahead, now {after}");
            }
        }
        machine.take_kicks();
        machine.check();
        machine.check_busy();
    }
}
