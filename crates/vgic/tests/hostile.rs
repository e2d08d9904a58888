//! A guest that writes arbitrary values to any register, on any vCPU, at any time, causes no panic.

mod model;

use model::hostile::{Op, apply};
use model::machine::Machine;
use proptest::prelude::*;
use stile_vgic::{GICD_SIZE, GICR_SIZE, Sgi, SgiRegister};

/// Mostly offsets of implemented registers.
fn offset(size: u64) -> impl Strategy<Value = u32> {
    let end = size as u32;
    prop_oneof![
        6 => (0..0x1000u32).prop_map(|offset| offset & !3),
        2 => (0x6000..0x7000u32).prop_map(|offset| offset & !3),
        6 => (0..0x1000u32).prop_map(move |offset| (end - 0x1_0000 + offset) & !3),
        1 => 0..end,
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), Just(u64::MAX), (0..64u32).prop_map(|bit| 1 << bit)]
}

fn stored() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => value().prop_map(Some), 1 => Just(None)]
}

fn op() -> impl Strategy<Value = Op> {
    let vcpu = || 0..3usize;
    let sas = || prop_oneof![4 => Just(2u32), 1 => 0..4u32];
    prop_oneof![
        8 => (offset(GICD_SIZE), sas(), stored())
            .prop_map(|(offset, sas, value)| Op::Distributor { offset, sas, value }),
        8 => (vcpu(), offset(GICR_SIZE), sas(), stored())
            .prop_map(|(v, offset, sas, value)| Op::Redistributor { v, offset, sas, value }),
        3 => (vcpu(), value()).prop_map(|(v, value)| Op::Sgi { v, value }),
        2 => (vcpu(), any::<u64>()).prop_map(|(v, value)| Op::Vmcr { v, value }),
        6 => vcpu().prop_map(|v| Op::Acknowledge { v }),
        3 => (vcpu(), 0..1024u32, any::<bool>())
            .prop_map(|(v, intid, group1)| Op::EndOfInterrupt { v, intid, group1 }),
        3 => (vcpu(), any::<u32>()).prop_map(|(v, intid)| Op::Deactivate { v, intid }),
        3 => (0..300u32, any::<bool>()).prop_map(|(intid, high)| Op::Line { intid, high }),
        3 => (vcpu(), any::<bool>()).prop_map(|(v, high)| Op::Timer { v, high }),
        6 => vcpu().prop_map(|v| Op::Exit { v }),
        2 => vcpu().prop_map(|v| Op::Move { v }),
    ]
}

proptest! {
    #![proptest_config(model::cases(40))]

    #[test]
    fn nothing_panics_and_maintenance_terminates(
        list_registers in 1..=16usize,
        late in any::<bool>(),
        vgrp0d_follows_group1 in any::<bool>(),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut machine = Machine::new(3, 2, list_registers, false);
        for interface in &mut machine.interfaces {
            interface.hostile = true;
            interface.vgrp0d_follows_group1 = vgrp0d_follows_group1;
        }
        machine.enable_groups();
        machine.late = late;
        for op in ops {
            apply(&mut machine, op);
        }
        machine.settle();
        // A reset restores the initial state.
        for v in 0..3 {
            machine.unload(v);
            machine.redistributors[v].reset();
        }
        machine.distributor.reset();
        let new = Machine::new(3, 0, list_registers, false);
        prop_assert!(machine.distributor == new.distributor);
        prop_assert!(machine.redistributors == new.redistributors);
    }

    #[test]
    fn any_sgi_write_decodes(value in any::<u64>(), sender in 0..20usize, vcpus in 0..20usize) {
        let sgi = Sgi::decode(SgiRegister::Sgi1r, value, sender, vcpus);
        prop_assert!(sgi.intid < 16);
        prop_assert!(sgi.targets.into_iter().all(|v| v < vcpus));
    }
}
