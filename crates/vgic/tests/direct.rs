//! Random sequences of operations as in `against_reference.rs`, with vCPUs whose SGIs and timers are the physical redistributor's now and
//! then: nothing is lost, nothing duplicated. And examples of each row of the table in `src/direct.rs`.

mod model;

use model::RESERVED_SGI;
use model::machine::Machine;
use model::operations::{Op, PPI, SGIS, SPIS, VCPUS, apply, apply_all_and_read, set_up};
use proptest::prelude::*;
use stile_vgic::SgiRegister;

/// A machine in which all SGIs and timers are of group 1.
fn machine(list_registers: usize) -> Machine {
    let mut machine = Machine::new(VCPUS, VCPUS, list_registers, false);
    set_up(&mut machine);
    for v in 0..VCPUS {
        machine.write_redistributor(v, 0x080, u32::MAX);
    }
    machine
}

fn sgi(v: usize, targets: u16, intid: u32) -> Op {
    Op::Sgi { v, register: SgiRegister::Sgi1r, targets, intid }
}

fn op() -> impl Strategy<Value = Op> {
    let vcpu = || 0..VCPUS;
    let intid = || prop_oneof![4 => prop::sample::select(&SGIS[..]), 2 => prop::sample::select(&[27u32, 30][..]), 1 => Just(PPI)];
    let priority = prop::sample::select(&[0, 0x20, 0x40, 0x48, 0x80, 0xa0, 0xf0][..]);
    prop_oneof![
        12 => vcpu().prop_map(|v| Op::Direct { v }),
        2 => vcpu().prop_map(|v| Op::Regain { v }),
        12 => (vcpu(), 0..8u16, prop::sample::select(&SGIS[..])).prop_map(|(v, targets, intid)| sgi(v, targets, intid)),
        8 => (vcpu(), prop::sample::select(&model::HW_PPIS[..]), any::<bool>()).prop_map(|(v, intid, high)| Op::Timer { v, intid, high }),
        1 => (prop_oneof![Just(PPI), prop::sample::select(&SPIS[..])], vcpu(), any::<bool>())
            .prop_map(|(intid, v, high)| Op::Level { intid, v, high }),
        4 => (vcpu(), 2..8u32, intid()).prop_map(|(v, kind, intid)| Op::Write { v, kind, intid, more: 0 }),
        2 => (vcpu(), intid(), priority).prop_map(|(v, intid, value)| Op::Priority { v, intid, value }),
        1 => prop_oneof![3 => Just(3), 1 => 0..4u32].prop_map(|value| Op::Enables { value }),
        1 => (vcpu(), prop::sample::select(&[0xf8, 0xf0, 0x80, 0x40][..])).prop_map(|(v, value)| Op::PriorityMask { v, value }),
        1 => (vcpu(), prop_oneof![2 => Just(3), 1 => 0..4u64]).prop_map(|(v, value)| Op::GroupEnables { v, value }),
        1 => (vcpu(), any::<bool>()).prop_map(|(v, split)| Op::Modes { v, split, common: false, binary_point: 2 }),
        22 => vcpu().prop_map(|v| Op::Acknowledge { v }),
        20 => vcpu().prop_map(|v| Op::End { v }),
        10 => (vcpu(), 0..8usize).prop_map(|(v, which)| Op::Deactivate { v, which }),
        1 => vcpu().prop_map(|v| Op::Unload { v }),
        4 => vcpu().prop_map(|v| Op::Load { v }),
        3 => (vcpu(), 1..8u32).prop_map(|(v, kind)| Op::Read { v, kind, n: 0 }),
    ]
}

proptest! {
    #![proptest_config(model::cases(200))]

    #[test]
    fn equals_the_reference(list_registers in 1..=4usize, ops in prop::collection::vec(op(), 1..200)) {
        let mut machine = machine(list_registers);
        apply_all_and_read(&mut machine, ops);
    }
}

#[test]
fn a_pending_sgi_goes_there_and_back() {
    let mut machine = machine(4);
    apply(&mut machine, sgi(1, 1, 7));
    assert!(machine.make_direct(0));
    machine.check();
    machine.regain(0);
    machine.check();
    assert_eq!(machine.acknowledge(0), Some(7));
}

#[test]
fn an_interrupt_that_is_being_handled_comes_back_active() {
    for split in [false, true] {
        let mut machine = machine(4);
        apply(&mut machine, Op::Modes { v: 0, split, common: false, binary_point: 2 });
        assert!(machine.make_direct(0));
        apply(&mut machine, sgi(0, 1, 1));
        machine.set_timer(0, 27, true);
        let first = machine.acknowledge(0).expect("two are pending");
        machine.regain(0);
        machine.settle();
        machine.check();
        assert!(!machine.make_direct(0), "{first} is active");
        machine.end(0);
        machine.deactivate(0, 0);
        machine.settle();
        machine.check();
        machine.check_registers();
    }
}

#[test]
fn a_timer_that_rang_rings_on() {
    let mut machine = machine(4);
    machine.set_timer(0, 27, true);
    machine.settle();
    assert!(machine.make_direct(0));
    machine.check();
    assert_eq!(machine.acknowledge(0), Some(27));
}

#[test]
fn a_priority_that_changes_meanwhile_is_of_the_next_one() {
    let mut machine = machine(4);
    assert!(machine.make_direct(0));
    apply(&mut machine, sgi(1, 1, 0));
    assert_eq!(machine.acknowledge(0), Some(0));
    apply(&mut machine, Op::Priority { v: 0, intid: 0, value: 0x20 });
    machine.end(0);
    machine.settle();
    machine.check_registers();
}

#[test]
fn what_hardware_can_not_hold_keeps_interrupts_virtual() {
    let mut spi = machine(4);
    apply(&mut spi, Op::Level { intid: 32, v: 0, high: true });
    assert!(!spi.make_direct(0));
    assert!(spi.make_direct(1), "the SPI is routed to another");
    let mut reserved = machine(4);
    apply(&mut reserved, sgi(1, 1, RESERVED_SGI));
    assert!(!reserved.make_direct(0));
    let mut group = machine(4);
    group.write_redistributor(0, 0x080, !1);
    assert!(!group.make_direct(0));
}

#[test]
fn a_timer_that_software_made_pending_stays_so_when_its_line_falls() {
    for direct in [false, true] {
        let mut machine = machine(1);
        machine.set_timer(0, 27, true);
        machine.write_redistributor(0, 0x200, 1 << 30);
        machine.settle();
        assert!(!direct || !machine.make_direct(0), "hardware could not give the latch back");
        machine.set_timer(0, 30, true);
        machine.check_registers();
        machine.set_timer(0, 30, false);
        machine.settle();
        machine.check_registers();
    }
}

#[test]
fn an_spi_ends_direct_interrupts_and_they_return() {
    let mut machine = machine(4);
    assert!(machine.make_direct(0));
    apply(&mut machine, Op::Level { intid: 32, v: 0, high: true });
    machine.settle();
    machine.check();
    assert_eq!(machine.acknowledge(0), Some(32));
    apply(&mut machine, Op::Level { intid: 32, v: 0, high: false });
    assert!(!machine.make_direct(0), "it is active");
    machine.end(0);
    machine.settle();
    assert!(machine.make_direct(0));
    machine.check();
}

#[test]
fn sgis_that_no_physical_one_can_be_need_a_trap_while_they_are_enabled() {
    let mut machine = machine(4);
    let traps = |machine: &mut Machine, writes: &[(u32, u32)]| {
        writes.iter().for_each(|&(offset, value)| machine.write_redistributor(0, offset, value));
        machine.redistributors[0].needs_trapped_sgis(1 << RESERVED_SGI)
    };
    let (group, enable, disable) = (0x080, 0x100, 0x180);
    assert!(!traps(&mut machine, &[(disable, u32::MAX)]));
    assert!(!traps(&mut machine, &[(enable, 0xffff_7fff)]), "all but the reserved one, in group 1");
    assert!(traps(&mut machine, &[(enable, 1 << RESERVED_SGI)]));
    assert!(!traps(&mut machine, &[(disable, 1 << RESERVED_SGI)]));
    assert!(!traps(&mut machine, &[(group, !(1 << 16))]), "a PPI of group 0 is none");
    assert!(traps(&mut machine, &[(group, !(1 << 3))]));
    assert!(!traps(&mut machine, &[(disable, 1 << 3)]));
}
