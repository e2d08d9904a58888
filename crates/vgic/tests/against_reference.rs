//! Random sequences of operations on the engine, with an emulated virtual CPU interface, and on a
//! reference GIC without list registers: a guest must not be able to tell them apart.

mod model;

use model::machine::Machine;
use proptest::prelude::*;
use stile_vgic::SgiRegister;

/// The interrupts used: few, so that they interact.
const SGIS: [u32; 4] = [0, 1, 7, 15];
const PPI: u32 = 20;
const SPIS: [u32; 8] = [32, 33, 34, 47, 63, 64, 130, 255];

const VCPUS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Level { intid: u32, v: usize, high: bool },
    Pulse { intid: u32 },
    Timer { v: usize, intid: u32, high: bool },
    Sgi { v: usize, register: SgiRegister, targets: u16, intid: u32 },
    Write { v: usize, kind: u32, intid: u32, more: u32 },
    Priority { v: usize, intid: u32, value: u8 },
    Config { v: usize, intid: u32, edge: bool },
    Route { intid: u32, route: u32 },
    Enables { value: u32 },
    PriorityMask { v: usize, value: u64 },
    GroupEnables { v: usize, value: u64 },
    Modes { v: usize, split: bool, common: bool, binary_point: u64 },
    Acknowledge { v: usize },
    End { v: usize },
    Deactivate { v: usize, which: usize },
    Unload { v: usize },
    Load { v: usize },
    Read { v: usize, kind: u32, n: u32 },
}

fn vcpu() -> impl Strategy<Value = usize> {
    0..VCPUS
}

fn intid() -> impl Strategy<Value = u32> {
    prop_oneof![prop::sample::select(&SGIS[..]), prop::sample::select(&[PPI, 27, 30][..]), prop::sample::select(&SPIS[..]),]
}

fn spi() -> impl Strategy<Value = u32> {
    prop::sample::select(&SPIS[..])
}

fn line() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(PPI), 4 => spi()]
}

fn register() -> impl Strategy<Value = SgiRegister> {
    prop_oneof![
        6 => Just(SgiRegister::Sgi1r),
        1 => Just(SgiRegister::Sgi0r),
        1 => Just(SgiRegister::Asgi1r),
    ]
}

fn priority() -> impl Strategy<Value = u8> {
    prop::sample::select(&[0, 0x20, 0x40, 0x48, 0x80, 0xa0, 0xa7, 0xf0, 0xf8][..])
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (line(), vcpu(), any::<bool>())
            .prop_map(|(intid, v, high)| Op::Level { intid, v, high }),
        6 => spi().prop_map(|intid| Op::Pulse { intid }),
        5 => (vcpu(), prop::sample::select(&model::HW_PPIS[..]), any::<bool>())
            .prop_map(|(v, intid, high)| Op::Timer { v, intid, high }),
        8 => (vcpu(), register(), 0..8u16, prop::sample::select(&SGIS[..]))
            .prop_map(|(v, register, targets, intid)| Op::Sgi { v, register, targets, intid }),
        // Registers with one bit per interrupt: IGROUPR to ICACTIVER.
        8 => (vcpu(), 1..8u32, intid(), prop_oneof![4 => Just(0), 1 => any::<u32>()])
            .prop_map(|(v, kind, intid, more)| Op::Write { v, kind, intid, more }),
        3 => (vcpu(), intid(), priority())
            .prop_map(|(v, intid, value)| Op::Priority { v, intid, value }),
        1 => (vcpu(), intid(), any::<bool>())
            .prop_map(|(v, intid, edge)| Op::Config { v, intid, edge }),
        3 => (spi(), prop_oneof![8 => 0..VCPUS as u32, 1 => Just(1 << 31), 1 => Just(0x100)])
            .prop_map(|(intid, route)| Op::Route { intid, route }),
        1 => prop_oneof![3 => Just(3), 1 => 0..4u32].prop_map(|value| Op::Enables { value }),
        2 => (vcpu(), prop::sample::select(&[0xf8, 0xf0, 0x80, 0x40, 0][..]))
            .prop_map(|(v, value)| Op::PriorityMask { v, value }),
        2 => (vcpu(), prop_oneof![2 => Just(3), 1 => 0..4u64])
            .prop_map(|(v, value)| Op::GroupEnables { v, value }),
        2 => (vcpu(), any::<bool>(), any::<bool>(), 2..8u64)
            .prop_map(|(v, split, common, binary_point)| Op::Modes { v, split, common, binary_point }),
        22 => vcpu().prop_map(|v| Op::Acknowledge { v }),
        16 => vcpu().prop_map(|v| Op::End { v }),
        10 => (vcpu(), 0..8usize).prop_map(|(v, which)| Op::Deactivate { v, which }),
        3 => vcpu().prop_map(|v| Op::Unload { v }),
        6 => vcpu().prop_map(|v| Op::Load { v }),
        6 => (vcpu(), 1..8u32, 0..8u32).prop_map(|(v, kind, n)| Op::Read { v, kind, n }),
    ]
}

/// Bits that may be made inactive by a write: with EOImode 0, ending an interrupt that is no longer
/// active is UNPREDICTABLE.
fn harmless(machine: &mut Machine, v: usize, n: u32, value: u32) -> u32 {
    let mut result = value;
    for i in 0..32 {
        let intid = n * 32 + i;
        if value >> i & 1 == 0 {
            continue;
        }
        if machine.in_hand(v, intid) {
            result &= !(1 << i);
        } else {
            machine.bury(v, intid);
        }
    }
    result
}

fn write(machine: &mut Machine, v: usize, offset: u32, value: u32, intid: u32) {
    if intid < 32 {
        machine.write_redistributor(v, offset, value);
    } else {
        machine.write_distributor(offset, value);
    }
}

fn apply(machine: &mut Machine, op: Op) {
    match op {
        Op::Level { intid, v, high } => machine.set_level(v, intid, high),
        Op::Pulse { intid } => machine.pulse(intid),
        Op::Timer { v, intid, high } => machine.set_timer(v, intid, high),
        Op::Sgi { v, register, targets, intid } => {
            machine.send_sgi(v, register, u64::from(targets) | u64::from(intid) << 24);
        }
        Op::Write { v, kind, intid, more } => {
            let n = intid / 32;
            let mut value = 1 << (intid % 32);
            if matches!(kind, 1 | 2 | 3 | 5 | 7) {
                value |= more;
            }
            if kind == 7 {
                value = harmless(machine, v, n, value);
            }
            write(machine, v, kind << 7 | n << 2, value, intid);
        }
        Op::Priority { v, intid, value } => {
            let offset = 0x400 + (intid & !3);
            let mut bytes = machine.reference.read(v, offset).to_le_bytes();
            bytes[intid as usize % 4] = value;
            write(machine, v, offset, u32::from_le_bytes(bytes), intid);
        }
        Op::Config { v, intid, edge } => {
            let offset = 0xc00 + intid / 16 * 4;
            let bit = 2 << (intid % 16 * 2);
            let value = machine.reference.read(v, offset) & !bit | if edge { bit } else { 0 };
            write(machine, v, offset, value, intid);
        }
        Op::Route { intid, route } => machine.write_distributor(0x6000 + intid * 8, route),
        Op::Enables { value } => machine.write_distributor(0, value),
        Op::PriorityMask { v, value } if machine.place[v].is_some() => {
            machine.set_vmcr(v, value << 24, 0xff << 24);
        }
        Op::GroupEnables { v, value } if machine.place[v].is_some() => {
            machine.set_vmcr(v, value, 3);
        }
        Op::Modes { v, split, common, binary_point } => {
            // UNPREDICTABLE, or makes later ends of interrupt so, while interrupts are in progress.
            let idle = machine.taken[v].is_empty() && machine.dropped[v].is_empty();
            if idle && machine.place[v].is_some() {
                let bits = u64::from(split) << 9 | u64::from(common) << 4 | binary_point << 21 | (binary_point + 1).min(7) << 18;
                machine.set_vmcr(v, bits, 1 << 9 | 1 << 4 | 0x3f << 18);
            }
        }
        Op::Acknowledge { v } => _ = machine.acknowledge(v),
        Op::End { v } => machine.end(v),
        Op::Deactivate { v, which } => machine.deactivate(v, which),
        Op::Unload { v } => _ = machine.unload(v),
        Op::Load { v } => _ = machine.load(v),
        Op::Read { v, kind, n } => machine.check_register(v, kind << 7, n),
        Op::PriorityMask { .. } | Op::GroupEnables { .. } => {}
    }
}

/// All interrupts enabled, in various priorities and both groups, some edge-triggered, spread over the
/// vCPUs.
fn set_up(machine: &mut Machine) {
    machine.enable_groups();
    for v in 0..VCPUS {
        machine.write_redistributor(v, 0x100, u32::MAX);
        machine.write_redistributor(v, 0x080, 0xffff_00ff);
    }
    for n in 1..8 {
        machine.write_distributor(0x100 + 4 * n, u32::MAX);
        machine.write_distributor(0x080 + 4 * n, 0xaaaa_5557);
        machine.write_distributor(0xc00 + 8 * n, 0x8888_8888);
    }
    for (k, intid) in (0..).zip(SGIS.into_iter().chain(SPIS)) {
        let levels = [0xa0, 0x80, 0x40, 0x80];
        for v in 0..VCPUS {
            apply(machine, Op::Priority { v, intid, value: levels[k % 4] });
        }
    }
    for (k, intid) in (0..).zip(SPIS) {
        apply(machine, Op::Route { intid, route: k % VCPUS as u32 });
    }
    machine.settle();
    machine.check();
}

fn list_registers() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(1),
        2 => Just(2),
        2 => Just(3),
        2 => Just(4),
        1 => 5..=16usize,
    ]
}

proptest! {
    #![proptest_config(model::cases(120))]

    #[test]
    fn equals_the_reference(
        list_registers in list_registers(),
        cpus in 2..=VCPUS,
        np_counts_active in any::<bool>(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut machine = Machine::new(VCPUS, cpus, list_registers, np_counts_active);
        set_up(&mut machine);
        for op in ops {
            apply(&mut machine, op);
            machine.settle();
            machine.check();
        }
        machine.check_registers();
        machine.settle();
        machine.check();
    }
}

/// More interrupts than list registers wait, and the guest disables all groups: nothing is left to wake it.
#[test]
fn disabled_groups_wake_nobody() {
    let mut machine = Machine::new(VCPUS, 3, 2, false);
    set_up(&mut machine);
    let (v, high) = (2, true);
    for op in [
        Op::Load { v: 0 },
        Op::Sgi { v: 0, register: SgiRegister::Sgi1r, targets: 1 << v, intid: 0 },
        Op::GroupEnables { v, value: 2 },
        Op::Level { intid: PPI, v, high },
        Op::Timer { v, intid: 27, high },
        Op::GroupEnables { v, value: 0 },
        Op::GroupEnables { v, value: 3 },
    ] {
        apply(&mut machine, op);
        machine.settle();
        machine.check();
    }
}
