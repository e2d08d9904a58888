//! Random sequences of operations on the engine, with an emulated virtual CPU interface, and on a
//! reference GIC without list registers: a guest must not be able to tell them apart.

mod model;

use model::machine::Machine;
use model::operations::{Op, PPI, SGIS, SPIS, VCPUS, apply_all, apply_all_and_read, set_up};
use proptest::prelude::*;
use stile_vgic::SgiRegister;

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
        6 => (vcpu(), spi()).prop_map(|(v, intid)| Op::Post { v, intid }),
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
        8 => vcpu().prop_map(|v| Op::Direct { v }),
        2 => vcpu().prop_map(|v| Op::Regain { v }),
        6 => (vcpu(), 1..8u32, 0..8u32).prop_map(|(v, kind, n)| Op::Read { v, kind, n }),
    ]
}

/// Operations that let timers come and go on one vCPU while other interrupts wait.
fn timer_op() -> impl Strategy<Value = Op> {
    let v = 0;
    prop_oneof![
        6 => (prop::sample::select(&model::HW_PPIS[..]), any::<bool>()).prop_map(move |(intid, high)| Op::Timer { v, intid, high }),
        2 => prop::sample::select(&SGIS[..]).prop_map(move |intid| Op::Sgi { v, register: SgiRegister::Sgi1r, targets: 1 << v, intid }),
        1 => any::<bool>().prop_map(move |high| Op::Level { intid: PPI, v, high }),
        1 => (prop::sample::select(&model::HW_PPIS[..]), priority()).prop_map(move |(intid, value)| Op::Priority { v, intid, value }),
        3 => Just(Op::Acknowledge { v }),
        3 => Just(Op::End { v }),
        2 => (0..8usize).prop_map(move |which| Op::Deactivate { v, which }),
    ]
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
        apply_all_and_read(&mut machine, ops);
    }

    /// An interrupt that was chosen for a list register may turn out not to be pending any more.
    #[test]
    fn timers_come_and_go(
        list_registers in 1..=4usize,
        split in any::<bool>(),
        np_counts_active in any::<bool>(),
        ops in prop::collection::vec(timer_op(), 1..100),
    ) {
        let mut machine = Machine::new(VCPUS, 1, list_registers, np_counts_active);
        set_up(&mut machine);
        machine.set_vmcr(0, u64::from(split) << 9, 1 << 9);
        apply_all_and_read(&mut machine, ops);
    }
}

/// More interrupts than list registers wait, and the guest disables all groups: nothing is left to wake it.
#[test]
fn disabled_groups_wake_nobody() {
    let mut machine = Machine::new(VCPUS, 3, 2, false);
    set_up(&mut machine);
    let (v, high) = (2, true);
    let ops = [
        Op::Load { v: 0 },
        Op::Sgi { v: 0, register: SgiRegister::Sgi1r, targets: 1 << v, intid: 0 },
        Op::GroupEnables { v, value: 2 },
        Op::Level { intid: PPI, v, high },
        Op::Timer { v, intid: 27, high },
        Op::GroupEnables { v, value: 0 },
        Op::GroupEnables { v, value: 3 },
    ];
    apply_all(&mut machine, ops);
}
