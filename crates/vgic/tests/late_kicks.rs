//! Delayed kicks: vCPUs continue to run, acknowledge and end interrupts, are put and loaded, while
//! events for them are in flight. No event is lost, and none is delivered twice.

mod model;

use model::machine::Machine;
use proptest::prelude::*;
use stile_vgic::SgiRegister;

const VCPUS: usize = 3;
const EDGE: [u32; 5] = [32, 48, 63, 64, 255];
const LEVEL: [u32; 3] = [34, 35, 100];

#[derive(Clone, Debug)]
enum Op {
    Pulse { intid: u32 },
    Post { v: usize, intid: u32 },
    Level { intid: u32, high: bool },
    Timer { v: usize },
    Sgi { v: usize, targets: u64, intid: u64 },
    Acknowledge { v: usize },
    End { v: usize },
    Deactivate { v: usize, which: usize },
    Answer { v: usize },
    Unload { v: usize },
    Load { v: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let vcpu = || 0..VCPUS;
    prop_oneof![
        4 => prop::sample::select(&EDGE[..]).prop_map(|intid| Op::Pulse { intid }),
        4 => (vcpu(), prop::sample::select(&EDGE[..])).prop_map(|(v, intid)| Op::Post { v, intid }),
        4 => (prop::sample::select(&LEVEL[..]), any::<bool>())
            .prop_map(|(intid, high)| Op::Level { intid, high }),
        1 => vcpu().prop_map(|v| Op::Timer { v }),
        4 => (vcpu(), 0..8u64, 0..4u64)
            .prop_map(|(v, targets, intid)| Op::Sgi { v, targets, intid }),
        8 => vcpu().prop_map(|v| Op::Acknowledge { v }),
        6 => vcpu().prop_map(|v| Op::End { v }),
        4 => (vcpu(), 0..4usize).prop_map(|(v, which)| Op::Deactivate { v, which }),
        5 => vcpu().prop_map(|v| Op::Answer { v }),
        2 => vcpu().prop_map(|v| Op::Unload { v }),
        4 => vcpu().prop_map(|v| Op::Load { v }),
    ]
}

fn apply(machine: &mut Machine, op: Op) {
    match op {
        Op::Pulse { intid } => machine.pulse(intid),
        Op::Post { v, intid } => machine.post(v, intid),
        Op::Level { intid, high } => machine.set_level(0, intid, high),
        Op::Timer { v } => machine.set_timer(v, 27, true),
        Op::Sgi { v, targets, intid } => {
            machine.send_sgi(v, SgiRegister::Sgi1r, targets | intid << 24);
        }
        Op::Acknowledge { v } => _ = machine.acknowledge(v),
        Op::End { v } => machine.end(v),
        Op::Deactivate { v, which } => machine.deactivate(v, which),
        Op::Answer { v } => machine.answer(v),
        Op::Unload { v } => _ = machine.unload(v),
        Op::Load { v } => _ = machine.load(v),
    }
}

fn set_up(machine: &mut Machine, split: [bool; VCPUS]) {
    machine.enable_groups();
    for (v, split) in split.into_iter().enumerate() {
        machine.write_redistributor(v, 0x100, u32::MAX);
        machine.write_redistributor(v, 0x080, 0x0fff_00fe);
        machine.write_redistributor(v, 0x400, 0x8040_a020);
        machine.set_vmcr(v, u64::from(split) << 9, 1 << 9);
    }
    for n in 1..8 {
        machine.write_distributor(0x100 + 4 * n, u32::MAX);
        machine.write_distributor(0x080 + 4 * n, u32::MAX);
    }
    for (k, intid) in (0..).zip(EDGE.into_iter().chain(LEVEL)) {
        machine.write_distributor(0x6000 + 8 * intid, k % VCPUS as u32);
        let edge = EDGE.contains(&intid);
        let config = machine.reference.read(0, 0xc00 + intid / 16 * 4);
        let bit = 2 << (intid % 16 * 2);
        let config = if edge { config | bit } else { config & !bit };
        machine.write_distributor(0xc00 + intid / 16 * 4, config);
        let offset = 0x400 + (intid & !3);
        let shift = intid % 4 * 8;
        let priorities = machine.reference.read(0, offset) & !(0xff << shift);
        machine.write_distributor(offset, priorities | (0x20 << (k % 3)) << shift);
    }
    machine.settle();
}

proptest! {
    #![proptest_config(model::cases(100))]

    #[test]
    fn no_event_is_lost_or_delivered_twice(
        list_registers in prop_oneof![Just(1), Just(2), Just(4), 5..=16usize],
        cpus in 1..=VCPUS,
        np_counts_active in any::<bool>(),
        split in any::<[bool; VCPUS]>(),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut machine = Machine::new(VCPUS, cpus, list_registers, np_counts_active);
        set_up(&mut machine, split);
        machine.late = true;
        for op in ops {
            apply(&mut machine, op);
        }
        machine.settle();
        machine.check();
        machine.check_registers();
    }
}
