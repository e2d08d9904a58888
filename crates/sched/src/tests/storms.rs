//! Storms on all CPUs at once: an honest VM, whose vCPUs never block, keeps its share of the machine and waits no longer
//! than beside busy VMs.

use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::machine::{Machine, SLICE};
use super::{VCPUS_OF_VM, cpu, vcpu};
use crate::{Scheduler, State};

/// Operation of a guest on the CPU that runs it, or on the attackers' other vCPUs.
#[derive(Clone, Copy, Debug)]
enum Act {
    Block,
    Yield,
    /// Blocks just before its slice ends.
    BlockLate,
    /// Turns itself off just before its slice ends.
    OffLate,
    Off,
    Wake(usize),
    WakeAll,
    Start(usize),
    StartAll,
    Nothing,
}

const ACTS: [Act; 10] = [
    Act::Block,
    Act::Yield,
    Act::BlockLate,
    Act::OffLate,
    Act::Off,
    Act::Wake(3),
    Act::WakeAll,
    Act::Start(5),
    Act::StartAll,
    Act::Nothing,
];

/// An attack: what the vCPUs on each CPU do, by turns.
fn storm() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => prop::sample::select(&ACTS[..]),
        2 => (0..64_usize).prop_map(Act::Wake),
        2 => (0..64_usize).prop_map(Act::Start),
        4 => Just(Act::Nothing),
    ];
    prop::collection::vec(act, 1..12)
}

/// Performs an act on a CPU. VM 0 is honest.
fn perform(machine: &mut Machine, number: usize, act: Act) {
    let attacks = machine.current(number).is_some_and(|index| index >= VCPUS_OF_VM);
    let late = machine.slice_end[number].is_some_and(|end| end == machine.now + 1);
    let attackers = VCPUS_OF_VM..machine.vcpus;
    let one = |index: usize| attackers.start + index % attackers.len();
    match act {
        Act::Block if attacks => machine.step(cpu(number), Scheduler::block),
        Act::BlockLate if attacks && late => machine.step(cpu(number), Scheduler::block),
        Act::Yield if attacks => machine.step(cpu(number), Scheduler::yield_now),
        Act::Off if attacks => machine.step(cpu(number), Scheduler::off),
        Act::OffLate if attacks && late => machine.step(cpu(number), Scheduler::off),
        Act::Wake(index) => machine.wake(one(index)),
        Act::WakeAll => attackers.for_each(|index| machine.wake(index)),
        Act::Start(index) => {
            machine.start(one(index));
        }
        Act::StartAll => attackers.for_each(|index| {
            machine.start(index);
        }),
        _ => {}
    }
}

/// Running time of the honest VM's vCPUs in CPUs, and the longest wait of one of them in ticks, beside these attackers.
fn beside(cpus: usize, honest: usize, attackers: usize, slices: u64, storms: &[Vec<Act>]) -> (f64, u64) {
    let mut affinity = std::vec![0; VCPUS_OF_VM];
    affinity[..honest].fill((1 << cpus) - 1);
    affinity.resize(VCPUS_OF_VM * (1 + attackers), (1 << cpus) - 1);
    let mut machine = Machine::new(cpus, &affinity);
    (0..=attackers).for_each(|vm| machine.scheduler.set_share(vm as u8, 100, None));
    machine.start_all();
    let ran = |machine: &Machine| (0..honest).map(|index| machine.scheduler.times(vcpu(index), machine.now).ran).sum::<u64>();
    let before = ran(&machine);
    let mut waits_since = [None; VCPUS_OF_VM];
    let mut longest = 0;
    for turn in 0..(slices * SLICE) as usize {
        machine.tick();
        for number in 0..cpus {
            let storm = &storms[number % storms.len()];
            perform(&mut machine, number, storm[turn % storm.len()]);
        }
        machine.take_kicks();
        for (index, since) in waits_since.iter_mut().enumerate().take(honest) {
            match machine.scheduler.state(vcpu(index)) {
                State::Ready(_) => longest = longest.max(machine.now - *since.get_or_insert(machine.now)),
                _ => *since = None,
            }
        }
    }
    machine.check();
    ((ran(&machine) - before) as f64 / (slices * SLICE) as f64, longest)
}

/// The share of docs/scheduling.md, "Guarantees". An attacker whose other vCPUs sleep has one with all of its weight.
fn entitled(cpus: usize, honest: usize, attackers: usize) -> f64 {
    (cpus as f64 / ((1 + attackers) as f64 + cpus as f64)).min(honest as f64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, rng_seed: RngSeed::Fixed(14), ..ProptestConfig::default() })]

    /// Combinations of attacks, another one on each of a few CPUs.
    #[test]
    fn an_honest_vm_keeps_its_share(
        cpus in prop::sample::select(&[1_usize, 2, 4, 16][..]),
        honest in 1..=3_usize,
        attackers in 1..=5_usize,
        storms in prop::collection::vec(storm(), 1..5),
    ) {
        let (share, longest) = beside(cpus, honest, attackers, 100, &storms);
        let entitled = entitled(cpus, honest, attackers);
        prop_assert!(share >= 0.95 * entitled - 0.05, "{share} of {entitled}, waited {longest}");
    }
}

/// Net running time, in ticks, of a busy VM beside one with a busy vCPU and sleepers, seven of which a CPU wakes in each slice. A
/// wake-up takes `took` ticks of the vCPU that runs meanwhile, and is charged to the sleeper's VM if `charges`. The total is 1000 slices.
fn beside_sleepers(took: u64, weights: [u16; 2], charges: bool) -> u64 {
    let mut affinity = std::vec![0; VCPUS_OF_VM];
    affinity[0] = 1;
    affinity.resize(2 * VCPUS_OF_VM, 1);
    let mut machine = Machine::new(1, &affinity);
    (0..2).for_each(|vm| machine.scheduler.set_share(vm, weights[usize::from(vm)], None));
    machine.start_all();
    let mut taken = 0;
    while machine.now < 1000 * SLICE {
        machine.tick();
        // Sleepers that got the CPU sleep again.
        while machine.current(0).is_some_and(|index| index > VCPUS_OF_VM) {
            machine.step(cpu(0), Scheduler::block);
        }
        if machine.now % SLICE == SLICE / 2 && machine.current(0) == Some(0) {
            for index in VCPUS_OF_VM + 1..machine.vcpus {
                let began = machine.now;
                machine.wake(index);
                machine.now += took;
                taken += took;
                if charges {
                    machine.scheduler.lock(cpu(0)).charge_woken(cpu(0), vcpu(index), began, machine.now);
                }
            }
        }
        machine.take_kicks();
    }
    machine.check();
    machine.scheduler.times(vcpu(0), machine.now).ran - taken
}

/// Sleepers' wake-ups are their own VM's expense: the busy VM's net time is its share.
#[test]
fn wake_ups_are_charged_to_the_woken() {
    for weights in [[100, 100], [300, 100], [100, 300]] {
        let share = 1000 * SLICE * u64::from(weights[0]) / u64::from(weights[0] + weights[1]);
        let [charged, not] = [true, false].map(|charges| beside_sleepers(2, weights, charges));
        assert!(charged.abs_diff(share) <= share / 100 + 2 * SLICE, "{weights:?}: {charged} of {share}, or {not}");
        assert!(not < charged, "{weights:?}: {not}");
    }
}

/// Each attack alone, by all vCPUs of three VMs on sixteen CPUs, with sleepers woken and vCPUs started again without end.
#[test]
fn no_single_attack_takes_a_share() {
    for act in ACTS {
        for again in [Act::WakeAll, Act::StartAll] {
            let storms = [std::vec![act], std::vec![again, act], std::vec![act, act, act], std::vec![act]];
            let (share, longest) = beside(16, 1, 3, 20, &storms);
            let entitled = entitled(16, 1, 3);
            assert!(share >= 0.95 * entitled - 0.05, "{act:?}, {again:?}: {share} of {entitled}, waited {longest}");
            assert!(longest <= 4 * SLICE, "{act:?}, {again:?}: waited {longest}");
        }
    }
}
