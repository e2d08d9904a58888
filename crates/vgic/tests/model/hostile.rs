//! Operations of a guest that writes arbitrary values to any register.

use stile_vgic::{Delivery, Read, SgiRegister, Size};

use super::machine::Machine;

/// An operation of the guest, or of the hypervisor on its behalf.
#[derive(Clone, Debug)]
pub enum Op {
    Distributor { offset: u32, sas: u32, value: Option<u64> },
    Redistributor { v: usize, offset: u32, sas: u32, value: Option<u64> },
    Sgi { v: usize, value: u64 },
    Vmcr { v: usize, value: u64 },
    Acknowledge { v: usize },
    EndOfInterrupt { v: usize, intid: u32, group1: bool },
    Deactivate { v: usize, intid: u32 },
    Line { intid: u32, high: bool },
    Timer { v: usize, high: bool },
    Exit { v: usize },
    Move { v: usize },
}

/// Performs an operation.
pub fn apply(machine: &mut Machine, op: Op) {
    match op {
        Op::Distributor { offset, sas, value: Some(value) } => {
            let kick = machine.distributor.write(offset, Size::from_sas(sas), value);
            machine.kick(kick);
        }
        Op::Distributor { offset, sas, value: None } => {
            let size = Size::from_sas(sas);
            if let Read::Stale(vcpus) = machine.distributor.read(offset, size) {
                vcpus.into_iter().for_each(|v| machine.sync(v));
                assert!(machine.distributor.unpublished().is_empty());
            }
            machine.distributor.read_published(offset, size);
        }
        Op::Redistributor { v, offset, sas, value: Some(value) } => {
            let write = machine.redistributors[v].write(offset, Size::from_sas(sas), value);
            if write == Delivery::NeedsSync {
                machine.sync_private(v);
            }
        }
        Op::Redistributor { v, offset, sas, value: None } => {
            let size = Size::from_sas(sas);
            if let Read::Stale(_) = machine.redistributors[v].read(offset, size) {
                machine.sync_private(v);
                assert!(!machine.redistributors[v].unpublished());
            }
            machine.redistributors[v].read_published(offset, size);
        }
        Op::Sgi { v, value } => machine.send_sgi(v, SgiRegister::Sgi1r, value),
        Op::Vmcr { v, value } => machine.set_vmcr(v, value, u64::MAX),
        Op::Acknowledge { v } => {
            if let Some(p) = machine.place[v] {
                machine.interfaces[p].acknowledge();
            }
        }
        Op::EndOfInterrupt { v, intid, group1 } => {
            if let Some(p) = machine.place[v] {
                machine.interfaces[p].end_of_interrupt(intid, group1);
            }
        }
        Op::Deactivate { v, intid } => {
            let Some(p) = machine.place[v] else { return };
            let interface = &mut machine.interfaces[p];
            if !interface.deactivate_interrupt(intid) {
                let kick = machine.redistributors[v].deactivate(&mut machine.distributor, interface, intid);
                machine.kick(kick);
            }
        }
        Op::Line { intid, high } => {
            let kick = machine.distributor.set_level(intid, high) | machine.distributor.pulse(intid);
            machine.kick(kick);
            if machine.redistributors[0].set_ppi_level(intid, high) {
                machine.sync_private(0);
            }
        }
        Op::Timer { v, high } => machine.set_timer(v, 27, high),
        Op::Exit { v } => machine.answer(v),
        Op::Move { v } => {
            if !machine.unload(v) {
                machine.load(v);
            }
        }
    }
}
