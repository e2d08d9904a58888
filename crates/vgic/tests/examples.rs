//! Examples, each of one property that a guest or the hypervisor relies on.

mod model;

use model::machine::Machine;
use stile_vgic::{
    Config, Delivery, Distributor, Kick, ListRegister, ListRegisters, Maintenance, Read, Redistributor, Sgi, SgiRegister, Size, Vmcr,
};

/// Two vCPUs, loaded on two physical CPUs, all interrupts enabled in group 1 with priority 0x80.
fn machine(list_registers: usize) -> Machine {
    let mut machine = Machine::new(2, 2, list_registers, true);
    machine.enable_groups();
    for v in 0..2 {
        machine.write_redistributor(v, 0x080, u32::MAX);
        machine.write_redistributor(v, 0x100, u32::MAX);
        for n in 0..8 {
            machine.write_redistributor(v, 0x400 + 4 * n, 0x8080_8080);
        }
    }
    for n in 1..8 {
        machine.write_distributor(0x080 + 4 * n, u32::MAX);
        machine.write_distributor(0x100 + 4 * n, u32::MAX);
        for i in 0..8 {
            machine.write_distributor(0x400 + 32 * n + 4 * i, 0x8080_8080);
        }
    }
    machine.settle();
    machine
}

/// List-register accesses of vCPU `v`'s physical CPU while `f` runs.
fn accesses(machine: &mut Machine, v: usize, f: impl FnOnce(&mut Machine)) -> usize {
    let p = machine.place[v].unwrap();
    let before = machine.interfaces[p].accesses.get();
    f(machine);
    machine.interfaces[p].accesses.get() - before
}

fn interface(machine: &mut Machine, v: usize) -> &mut model::interface::Interface {
    let p = machine.place[v].unwrap();
    &mut machine.interfaces[p]
}

fn maintenance(machine: &mut Machine, v: usize) -> u32 {
    interface(machine, v).maintenance.0
}

fn send_sgi(machine: &mut Machine, v: usize, intid: u64, targets: u64) {
    machine.send_sgi(v, SgiRegister::Sgi1r, intid << 24 | targets);
}

#[test]
fn identification_after_reset() {
    let mut machine = Machine::new(2, 2, 4, true);
    let mut gicd = |offset| machine.distributor.read(offset, Size::Word);
    // DS and ARE are always set.
    assert_eq!(gicd(0x0000), Read::Value(0x50));
    // 256 INTIDs of ten bits.
    assert_eq!(gicd(0x0004), Read::Value(0x0048_0007));
    assert_eq!(gicd(0x0008), Read::Value(0x43b));
    // GICv3.
    assert_eq!(gicd(0xffe8), Read::Value(0x3b));
    // RAZ: registers of SGIs and PPIs, and those past the last SPI.
    for offset in [0x080, 0x100, 0x120, 0x17c, 0x400, 0x800, 0xc00, 0xd04, 0x6000, 0x6800] {
        assert_eq!(gicd(offset), Read::Value(0), "{offset:#x}");
    }

    let mut gicr = |v: usize, offset, size| machine.redistributors[v].read(offset, size);
    assert_eq!(gicr(0, 0x0008, Size::Double), Read::Value(0));
    // Affinity 0.0.0.1, number 1, the last.
    assert_eq!(gicr(1, 0x0008, Size::Double), Read::Value(1 << 32 | 1 << 8 | 1 << 4));
    assert_eq!(gicr(1, 0x0008, Size::Word), Read::Value(1 << 8 | 1 << 4));
    assert_eq!(gicr(1, 0x000c, Size::Word), Read::Value(1));
    assert_eq!(gicr(1, 0xffe8, Size::Word), Read::Value(0x3b));
    // SGIs are edge-triggered, PPIs level-sensitive.
    assert_eq!(gicr(1, 0x1_0c00, Size::Word), Read::Value(0xaaaa_aaaa));
    assert_eq!(gicr(1, 0x1_0c04, Size::Word), Read::Value(0));
}

#[test]
fn a_common_binary_point_is_preserved_by_resets() {
    let config = Config {
        vcpu: 0,
        last: true,
        list_registers: 4,
        priority_bits: 5,
        preemption_bits: 5,
        hw_ppis: 0,
        behind: stile_vgic::SAME_PPIS,
        common_binary_point: true,
        gicv2: false,
    };
    let mut redistributor = Redistributor::new(config);
    let is_fixed = |it: &mut Redistributor| it.interface().vmcr.0 & Vmcr::VCBPR != 0;
    assert!(is_fixed(&mut redistributor));
    // Powered on again, and after a reset of the VM.
    let mut distributor = Distributor::new(1, 5, stile_vgic::INTID_END);
    redistributor.interface().vmcr = Vmcr(0);
    assert!(redistributor.reset_interface(&mut distributor).is_empty());
    assert!(is_fixed(&mut redistributor));
    redistributor.reset();
    assert!(is_fixed(&mut redistributor));
}

#[test]
fn the_redistributor_wakes_at_once() {
    let mut machine = Machine::new(1, 1, 4, true);
    let redistributor = &mut machine.redistributors[0];
    assert_eq!(redistributor.read(0x14, Size::Word), Read::Value(0b110));
    assert_eq!(redistributor.write(0x14, Size::Word, 0), Delivery::Done);
    assert_eq!(redistributor.read(0x14, Size::Word), Read::Value(0));
}

#[test]
fn sizes_of_accesses() {
    let mut machine = machine(4);
    let distributor = &mut machine.distributor;
    // A byte of a priority; unimplemented bits read as zero.
    let _ = distributor.write(0x421, Size::Byte, 0xff);
    assert_eq!(distributor.read(0x420, Size::Word), Read::Value(0x8080_f880));
    assert_eq!(distributor.read(0x421, Size::Byte), Read::Value(0xf8));
    // A route is 64 bits, or its halves.
    let _ = distributor.write(0x6100, Size::Double, 1 << 31 | 0x10_203);
    assert_eq!(distributor.read(0x6100, Size::Double), Read::Value(0x8001_0203));
    let _ = distributor.write(0x6104, Size::Word, 0xff);
    assert_eq!(distributor.read(0x6104, Size::Word), Read::Value(0));
    let _ = distributor.write(0x6100, Size::Word, 1);
    assert_eq!(distributor.read(0x6100, Size::Double), Read::Value(1));
    // Other sizes are RAZ/WI.
    let _ = distributor.write(0x184, Size::Byte, 0xff);
    let _ = distributor.write(0x184, Size::Half, 0xffff);
    let _ = distributor.write(0x180, Size::Double, u64::MAX);
    let _ = distributor.write(0x186, Size::Word, u64::MAX);
    assert_eq!(distributor.read(0x104, Size::Word), Read::Value(0xffff_ffff));
    for (offset, size) in [(0x104, Size::Byte), (0x104, Size::Half), (0x100, Size::Double), (0x106, Size::Word)] {
        assert_eq!(distributor.read(offset, size), Read::Value(0));
    }
    // Read-only registers ignore writes.
    let _ = distributor.write(0x0004, Size::Word, 0);
    assert_eq!(distributor.read(0x0004, Size::Word), Read::Value(0x0048_0007));
    let _ = distributor.write(0x0000, Size::Word, 0b10);
    assert_eq!(distributor.read(0x0000, Size::Word).without_rwp(), 0x52);
}

trait WithoutRwp {
    fn without_rwp(self) -> u64;
}

impl WithoutRwp for Read {
    fn without_rwp(self) -> u64 {
        match self {
            Read::Value(value) => value & !(1 << 31),
            Read::Stale(_) => panic!("{self:?}"),
        }
    }
}

#[test]
fn decoding_of_sgi_registers() {
    let decode = |register, value| Sgi::decode(register, value, 1, 4);
    let sgi = decode(SgiRegister::Sgi1r, 7 << 24 | 0b1_1110);
    assert_eq!(sgi, Sgi { intid: 7, targets: Kick::of_word(0, 0b1110), group1: true });
    // To all but the sender.
    assert_eq!(decode(SgiRegister::Sgi0r, 1 << 40), Sgi { intid: 0, targets: Kick::of_word(0, 0b1101), group1: false });
    // To a cluster, and to one of which not all are there.
    let of_40 = |value| Sgi::decode(SgiRegister::Sgi1r, value, 1, 40).targets;
    assert_eq!(of_40(1 << 16 | 0x8001), Kick::one(16) | Kick::one(31));
    assert_eq!(of_40(2 << 16 | 0xffff), Kick::of_word(0, 0xff << 32));
    assert_eq!(of_40(1 << 40), Kick::below(40).without(1));
    // Beyond the first word: cluster 15, whole and in part, and all but the sender.
    let of_250 = |value| Sgi::decode(SgiRegister::Sgi1r, value, 200, 250).targets;
    assert_eq!(of_250(15 << 16 | 0xfe00), Kick::one(249));
    assert_eq!(of_250(4 << 16 | 0xffff), Kick::of_word(1, 0xffff));
    assert!(of_250(1 << 40).into_iter().eq((0..250).filter(|&vcpu| vcpu != 200)));
    assert_eq!([3, 4, 0x80].map(|cluster| of_40(cluster << 16 | 1)), [Kick::NONE; 3]);
    // Affinities without a vCPU: Aff3, the range selector, Aff2, Aff1.
    for bit in [48, 44, 32, 16] {
        assert_eq!(decode(SgiRegister::Asgi1r, 1 << bit | 1).targets, Kick::NONE);
    }
}

/// An SPI routed by affinity is delivered to the vCPU with that affinity, if it exists.
#[test]
fn spis_are_routed_by_affinity() {
    let mut distributor = Distributor::new(20, 5, 64);
    for (offset, value) in [(0x0000, 0b10), (0x0084, u32::MAX), (0x0104, 1 << 8), (0x0c08, 0b10 << 16)] {
        let _ = distributor.write(offset, Size::Word, value.into());
    }
    for (route, kick) in [(0, Kick::one(0)), (0x103, Kick::one(19)), (0x104, Kick::NONE), (0x10, Kick::NONE), (0x203, Kick::NONE)] {
        let _ = distributor.write(0x6000 + 8 * 40, Size::Double, route);
        assert_eq!(distributor.read(0x6000 + 8 * 40, Size::Double), Read::Value(route));
        assert_eq!(distributor.pulse(40), kick, "{route:#x}");
    }
}

#[test]
fn an_sgi_takes_one_list_register_and_few_accesses() {
    let mut machine = machine(4);
    send_sgi(&mut machine, 0, 3, 0b01);
    for _ in 0..3 {
        assert_eq!(machine.acknowledge(0), Some(3));
        // Again while active: it is delivered after its end.
        assert_eq!(accesses(&mut machine, 0, |m| send_sgi(m, 0, 3, 0b01)), 2);
        assert_eq!(machine.acknowledge(0), None);
        machine.end(0);
    }
    assert_eq!(machine.acknowledge(0), Some(3));
    machine.end(0);
    assert_eq!(machine.acknowledge(0), None);
    assert_eq!(interface(&mut machine, 0).lr.iter().filter(|lr| lr.0 != 0).count(), 1);
    machine.check_registers();
}

#[test]
fn an_sgi_to_another_vcpu_needs_no_distributor() {
    let mut machine = machine(4);
    machine.late = true;
    for round in 0..3 {
        send_sgi(&mut machine, 0, 5, 0b10);
        // A second one merges with it.
        send_sgi(&mut machine, 0, 5, 0b10);
        let before = machine.distributor.clone();
        assert_eq!(accesses(&mut machine, 1, |m| m.answer(1)), if round == 0 { 1 } else { 2 });
        assert_eq!(machine.distributor, before);
        assert_eq!(interface(&mut machine, 1).acknowledge(), Some((5, true)));
        interface(&mut machine, 1).end_of_interrupt(5, true);
    }
}

#[test]
fn an_empty_sync_accesses_no_list_register() {
    let mut machine = machine(4);
    send_sgi(&mut machine, 0, 3, 0b01);
    machine.acknowledge(0);
    machine.end(0);
    assert_eq!(accesses(&mut machine, 0, |m| m.sync(0)), 0);
    assert_eq!(accesses(&mut machine, 0, |m| m.sync_private(0)), 0);
}

#[test]
fn sgi0r_reaches_group_0_only() {
    let mut machine = machine(4);
    machine.send_sgi(0, SgiRegister::Sgi0r, 1);
    assert_eq!(machine.acknowledge(0), None);
    machine.write_redistributor(0, 0x080, !1);
    machine.send_sgi(0, SgiRegister::Sgi0r, 1);
    assert_eq!(machine.acknowledge(0), Some(0));
}

#[test]
fn a_timer_tick_is_one_list_register_write() {
    let mut machine = machine(4);
    for round in 0..3 {
        let tick = accesses(&mut machine, 0, |m| {
            m.set_timer(0, 27, true);
            m.settle();
        });
        assert!(round == 0 || tick == 1, "{tick}");
        let lr = interface(&mut machine, 0).lr[0];
        assert!(lr.hw() && lr.pending() && lr.physical_intid() == 27);
        assert_eq!(machine.acknowledge(0), Some(27));
        // The handler reprograms the timer and ends the interrupt: no exit.
        machine.timers[0] = 0;
        interface(&mut machine, 0).physical_lines = 0;
        machine.reference.set_level(0, 27, false);
        machine.end(0);
        assert_eq!(interface(&mut machine, 0).physical_active, 0);
        assert!(!interface(&mut machine, 0).needs_maintenance());
        // Put and load make no difference.
        machine.unload(0);
        machine.load(0);
    }
}

#[test]
fn a_timer_interrupt_disabled_by_the_guest_stays_active_and_pending() {
    let mut machine = machine(4);
    machine.write_redistributor(0, 0x180, 1 << 27);
    machine.set_timer(0, 27, true);
    machine.settle();
    // The physical interrupt stays active: it does not fire again. The guest can see that it is pending.
    assert_eq!(interface(&mut machine, 0).physical_active, 1 << 27);
    assert_eq!(machine.acknowledge(0), None);
    assert_eq!(machine.read_redistributor(0, 0x200), 1 << 27);
    // It migrates with the vCPU.
    machine.unload(0);
    machine.load(0);
    assert_eq!(interface(&mut machine, 0).physical_active, 1 << 27);
    machine.write_redistributor(0, 0x100, 1 << 27);
    assert_eq!(machine.acknowledge(0), Some(27));
    machine.end(0);
    assert_eq!(interface(&mut machine, 0).physical_active, 0);
}

#[test]
fn a_timer_deasserted_before_acknowledge_is_not_pending() {
    let mut machine = machine(4);
    machine.write_redistributor(0, 0x180, 1 << 27);
    machine.set_timer(0, 27, true);
    machine.settle();
    machine.set_timer(0, 27, false);
    assert_eq!(machine.read_redistributor(0, 0x200), 0);
    assert_eq!(interface(&mut machine, 0).physical_active, 0);
    machine.write_redistributor(0, 0x100, 1 << 27);
    assert_eq!(machine.acknowledge(0), None);
    machine.set_timer(0, 27, true);
    machine.settle();
    assert_eq!(machine.acknowledge(0), Some(27));
}

#[test]
fn a_level_is_sampled_again_at_the_end_of_interrupt() {
    let mut machine = machine(4);
    machine.set_level(0, 33, true);
    assert_eq!(machine.acknowledge(0), Some(33));
    machine.end(0);
    assert!(interface(&mut machine, 0).needs_maintenance());
    machine.settle();
    assert_eq!(machine.acknowledge(0), Some(33));
    // The handler lowers the line first: then the end needs no exit.
    machine.set_level(0, 33, false);
    machine.end(0);
    assert!(!interface(&mut machine, 0).needs_maintenance());
    assert_eq!(machine.acknowledge(0), None);
}

#[test]
fn a_level_that_falls_before_acknowledge_is_withdrawn() {
    let mut machine = machine(4);
    machine.set_level(0, 33, true);
    machine.set_level(0, 33, false);
    assert_eq!(machine.acknowledge(0), None);
    // A pending latch set by ISPENDR outlives the line.
    machine.set_level(0, 33, true);
    machine.write_distributor(0x204, 1 << 1);
    machine.set_level(0, 33, false);
    assert_eq!(machine.acknowledge(0), Some(33));
    machine.end(0);
    machine.settle();
    assert_eq!(machine.acknowledge(0), None);
}

#[test]
fn interrupts_of_a_disabled_group_need_no_maintenance_until_it_is_enabled() {
    for vgrp0d_follows_group1 in [false, true] {
        let mut machine = machine(4);
        interface(&mut machine, 0).vgrp0d_follows_group1 = vgrp0d_follows_group1;
        // Group 0 alone is enabled, and six SGIs of group 1 wait for four list registers.
        machine.set_vmcr(0, Vmcr::VENG0, Vmcr::VENG0 | Vmcr::VENG1);
        for intid in 0..6 {
            send_sgi(&mut machine, 0, intid, 0b01);
        }
        machine.settle();
        assert!(!interface(&mut machine, 0).needs_maintenance());
        // Both disabled, then group 1 enabled: all six are delivered.
        machine.set_vmcr(0, 0, Vmcr::VENG0 | Vmcr::VENG1);
        machine.settle();
        machine.set_vmcr(0, Vmcr::VENG1, Vmcr::VENG1);
        machine.settle();
        for intid in 0..6 {
            assert_eq!(machine.acknowledge(0), Some(intid));
            machine.end(0);
            machine.settle();
        }
        assert_eq!(machine.acknowledge(0), None);
    }
}

/// Has `raise` make edge-triggered SPI `intid` pending three times, and leaves it so. Once the SPI is resident, that reads
/// and writes one list register, whether it is active or not.
fn raise_resident_spi(machine: &mut Machine, intid: u32, raise: impl Fn(&mut Machine)) {
    machine.write_distributor(0xc00 + intid / 16 * 4, 0xaaaa_aaaa);
    raise(machine);
    assert_eq!(machine.acknowledge(0), Some(intid));
    assert_eq!(accesses(machine, 0, &raise), 2);
    machine.end(0);
    assert_eq!(machine.acknowledge(0), Some(intid), "it came while it was active");
    machine.end(0);
    assert_eq!(accesses(machine, 0, &raise), 2);
}

#[test]
fn a_resident_spi_is_pulsed_in_its_list_register() {
    let mut machine = machine(4);
    raise_resident_spi(&mut machine, 40, |machine| machine.pulse(40));
    assert_eq!(machine.acknowledge(0), Some(40));
    machine.end(0);
    assert_eq!(machine.acknowledge(0), None);
}

#[test]
fn a_posted_spi_takes_one_list_register() {
    let mut machine = machine(4);
    // By its shortcut.
    raise_resident_spi(&mut machine, 48, |machine| machine.post(0, 48));
    assert_eq!(machine.read_distributor(0x204) >> 16 & 1, 1, "it reads as pending");
    assert_eq!(machine.acknowledge(0), Some(48));
    machine.end(0);
    // Cleared, or disabled, it is not delivered.
    machine.post(0, 48);
    machine.write_distributor(0x284, 1 << 16);
    assert_eq!(machine.acknowledge(0), None);
    machine.write_distributor(0x184, 1 << 16);
    machine.post(0, 48);
    assert_eq!(machine.acknowledge(0), None);
    machine.write_distributor(0x104, 1 << 16);
    assert_eq!(machine.acknowledge(0), Some(48));
    machine.end(0);
    assert_eq!(machine.acknowledge(0), None);
}

#[test]
fn a_posted_spi_follows_its_route() {
    let mut machine = machine(4);
    machine.write_distributor(0xc00 + 48 / 16 * 4, 0xaaaa_aaaa);
    machine.post(0, 48);
    assert_eq!(machine.acknowledge(0), Some(48));
    machine.end(0);
    machine.write_distributor(0x6000 + 48 * 8, 1);
    machine.post(0, 48);
    assert_eq!(machine.acknowledge(0), None);
    assert_eq!(machine.acknowledge(1), Some(48));
}

#[test]
fn overflowing_interrupts_are_delivered_by_priority() {
    let mut machine = machine(2);
    for (intid, priority) in [(40, 0xa0), (41, 0x20), (42, 0x80), (43, 0x60), (44, 0x40)] {
        let offset = 0x400 + (intid & !3);
        let shift = intid % 4 * 8;
        let old = machine.reference.read(0, offset) & !(0xff << shift);
        machine.write_distributor(offset, old | priority << shift);
        machine.write_distributor(0xc00 + intid / 16 * 4, 0xaaaa_aaaa);
    }
    for intid in 40..42 {
        machine.pulse(intid);
    }
    assert_eq!(maintenance(&mut machine, 0), 0);
    for intid in 42..45 {
        machine.pulse(intid);
    }
    assert_ne!(maintenance(&mut machine, 0) & Maintenance::NPIE, 0);
    let mut order = vec![];
    while let Some(intid) = machine.acknowledge(0) {
        order.push(intid);
        machine.end(0);
        machine.settle();
    }
    assert_eq!(order, [41, 44, 43, 42, 40]);
    assert_eq!(maintenance(&mut machine, 0), 0);
}

#[test]
fn more_active_interrupts_than_list_registers() {
    for split in [false, true] {
        let mut machine = machine(1);
        machine.set_vmcr(0, u64::from(split) << 9, Vmcr::VEOIM);
        for (intid, priority) in [(0, 0x80), (1, 0x60), (2, 0x40), (3, 0x20)] {
            let offset = 0x400 + (intid & !3);
            let shift = intid % 4 * 8;
            let old = machine.reference.read(0, offset) & !(0xff << shift);
            machine.write_redistributor(0, offset, old | priority << shift);
            send_sgi(&mut machine, 0, intid.into(), 0b01);
            assert_eq!(machine.acknowledge(0), Some(intid));
        }
        assert_ne!(maintenance(&mut machine, 0) & Maintenance::TDIR, 0);
        assert_eq!(machine.read_redistributor(0, 0x300), 0b1111);
        for _ in 0..4 {
            machine.end(0);
            machine.settle();
        }
        for which in [2, 0, 1, 0] {
            machine.deactivate(0, which);
            machine.settle();
        }
        assert_eq!(machine.read_redistributor(0, 0x300), 0);
        machine.sync(0);
        assert_eq!(maintenance(&mut machine, 0), 0);
    }
}

/// The interrupts chosen for free list registers turn out not to be pending any more: the next one takes their place.
#[test]
fn an_interrupt_waits_behind_timers_whose_condition_went_away() {
    let mut machine = machine(4);
    machine.set_vmcr(0, Vmcr::VEOIM, Vmcr::VEOIM);
    for (intid, priority) in [(3, 0x40), (4, 0x40), (27, 0x60), (30, 0x60), (5, 0xa0)] {
        let offset = 0x400 + (intid & !3);
        let shift = intid % 4 * 8;
        let old = machine.reference.read(0, offset) & !(0xff << shift);
        machine.write_redistributor(0, offset, old | priority << shift);
    }
    // Two list registers stay active, two are pending; the timers and SGI 5 wait in software.
    for intid in [1, 2] {
        send_sgi(&mut machine, 0, intid, 0b01);
        assert_eq!(machine.acknowledge(0), Some(intid as u32));
        machine.end(0);
    }
    send_sgi(&mut machine, 0, 3, 0b01);
    send_sgi(&mut machine, 0, 4, 0b01);
    for intid in [27, 30] {
        machine.set_timer(0, intid, true);
        machine.settle();
    }
    send_sgi(&mut machine, 0, 5, 0b01);
    assert_ne!(maintenance(&mut machine, 0) & Maintenance::NPIE, 0);
    for intid in [27, 30] {
        machine.set_timer(0, intid, false);
    }
    for intid in [3, 4] {
        assert_eq!(machine.acknowledge(0), Some(intid));
        machine.end(0);
        machine.deactivate(0, 2);
    }
    machine.settle();
    machine.check();
    assert_eq!(machine.acknowledge(0), Some(5));
    assert_eq!(interface(&mut machine, 0).physical_active, 0);
}

#[test]
fn an_spi_made_active_by_a_write_ends_like_any_other() {
    let mut machine = machine(4);
    machine.set_vmcr(1, Vmcr::VEOIM, Vmcr::VEOIM);
    machine.write_distributor(0x6000 + 8 * 70, 1);
    machine.write_distributor(0x308, 1 << 6);
    assert_eq!(machine.read_distributor(0x308), 1 << 6);
    assert!(interface(&mut machine, 1).deactivate_interrupt(70));
    assert_eq!(machine.read_distributor(0x308), 0);
}

#[test]
fn rwp_is_set_until_the_affected_vcpu_has_synced() {
    let mut machine = machine(4);
    machine.write_distributor(0x6000 + 8 * 64, 1);
    machine.set_level(0, 64, true);
    machine.late = true;
    machine.write_distributor(0x188, 1);
    assert_eq!(machine.distributor.read(0, Size::Word), Read::Value(1 << 31 | 0x53));
    assert_eq!(machine.distributor.unsettled(), Kick::one(1));
    machine.answer(1);
    assert_eq!(machine.distributor.read(0, Size::Word), Read::Value(0x53));
    assert_eq!(machine.distributor.unsettled(), Kick::NONE);
    assert_eq!(interface(&mut machine, 1).acknowledge(), None);
}

#[test]
fn state_in_another_vcpus_list_registers_is_published() {
    let mut machine = machine(4);
    machine.write_distributor(0x6000 + 8 * 64, 1);
    machine.set_level(0, 64, true);
    assert_eq!(machine.acknowledge(1), Some(64));
    assert_eq!(machine.distributor.read(0x308, Size::Word), Read::Stale(Kick::one(1)));
    assert_eq!(machine.distributor.unpublished(), Kick::one(1));
    machine.sync(1);
    assert_eq!(machine.distributor.unpublished(), Kick::NONE);
    assert_eq!(machine.distributor.read_published(0x308, Size::Word), 1);
    // A write does not wait for publication.
    machine.late = true;
    machine.write_distributor(0x388, 1);
    assert_eq!(machine.distributor.read(0x308, Size::Word), Read::Value(0));
}

#[test]
fn one_of_n_interrupts_go_to_the_lowest_online_vcpu() {
    let mut machine = machine(4);
    machine.write_distributor(0x6000 + 8 * 50, 1 << 31);
    machine.set_level(0, 50, true);
    assert_eq!(interface(&mut machine, 0).signalled().map(|lr| lr.intid()), Some(50));
    let kick = machine.distributor.set_online(1, true) | machine.distributor.set_online(0, false);
    machine.kick(kick);
    assert_eq!(interface(&mut machine, 0).signalled(), None);
    assert_eq!(interface(&mut machine, 1).signalled().map(|lr| lr.intid()), Some(50));
    let kick = machine.distributor.set_online(1, false);
    machine.kick(kick);
    assert_eq!(interface(&mut machine, 1).signalled(), None);
}

#[test]
fn a_rerouted_active_interrupt_ends_on_its_vcpu() {
    let mut machine = machine(4);
    machine.set_level(0, 50, true);
    assert_eq!(machine.acknowledge(0), Some(50));
    machine.write_distributor(0x6000 + 8 * 50, 1);
    assert_eq!(machine.acknowledge(1), None);
    machine.end(0);
    machine.settle();
    assert_eq!(machine.acknowledge(0), None);
    assert_eq!(machine.acknowledge(1), Some(50));
}

#[test]
fn wfi_wakes_for_signalled_interrupts_only() {
    let mut machine = machine(4);
    let wakes = |machine: &Machine| {
        let p = machine.place[0].unwrap();
        machine.redistributors[0].has_deliverable(&machine.interfaces[p])
    };
    assert!(!wakes(&machine));
    send_sgi(&mut machine, 0, 1, 0b01);
    assert!(wakes(&machine));
    machine.set_vmcr(0, 0x80 << 24, 0xff << 24);
    assert!(!wakes(&machine));
    machine.set_vmcr(0, 0xff << 24, 0xff << 24 | Vmcr::VENG1);
    assert!(!wakes(&machine));
    machine.set_vmcr(0, Vmcr::VENG1, Vmcr::VENG1);
    assert!(wakes(&machine));
    machine.acknowledge(0);
    assert!(!wakes(&machine));
    // Equal to the running priority: masked until its end.
    send_sgi(&mut machine, 0, 2, 0b01);
    assert!(!wakes(&machine));
    machine.end(0);
    assert!(wakes(&machine));
    // Likewise when it is not loaded.
    machine.unload(0);
    assert!(machine.redistributors[0].has_deliverable_saved());
}

#[test]
fn a_blocked_vcpu_wakes_for_a_level_just_ended() {
    let mut machine = machine(4);
    machine.set_level(0, 33, true);
    machine.acknowledge(0);
    machine.end(0);
    // Put before the maintenance interrupt is taken.
    machine.unload(0);
    assert!(machine.redistributors[0].has_deliverable_saved());
    machine.load(0);
    machine.settle();
    assert_eq!(machine.acknowledge(0), Some(33));
}

#[test]
fn a_vcpu_that_is_powered_on_again_starts_with_a_fresh_interface() {
    let mut machine = machine(2);
    machine.set_level(0, 33, true);
    send_sgi(&mut machine, 0, 1, 0b01);
    machine.acknowledge(0);
    machine.unload(0);
    let kick = machine.redistributors[0].reset_interface(&mut machine.distributor);
    assert_eq!(kick, Kick::NONE);
    assert_eq!(machine.redistributors[0].interface().vmcr, Vmcr::reset(5));
    machine.load(0);
    let interface = interface(&mut machine, 0);
    assert_eq!(interface.running_priority(), 0xff);
    // Both are still there: one active, one pending.
    assert!(interface.lr.iter().any(|lr| lr.active()));
    assert!(interface.lr.iter().any(|lr| lr.pending() && !lr.active()));
}

#[test]
fn a_timer_fires_while_its_vcpu_is_not_loaded() {
    let mut machine = machine(4);
    machine.unload(0);
    assert_eq!(machine.redistributors[0].inject_hw_ppi_saved(27), Delivery::Done);
    assert!(machine.redistributors[0].has_deliverable_saved());
    machine.timers[0] = 1 << 27;
    machine.load(0);
    assert_eq!(interface(&mut machine, 0).physical_active, 1 << 27);
    assert_eq!(interface(&mut machine, 0).acknowledge(), Some((27, true)));
}

#[test]
fn list_register_fields() {
    let lr = ListRegister::of(27).with_priority(0x88).with_group1(true).with_hw(27);
    assert_eq!(lr.0, 0x3088_001b_0000_001b);
    assert!(lr.invalid() && !lr.eoi_asserted());
    assert!(ListRegister::of(33).with(ListRegister::EOI).eoi_asserted());
}

#[test]
fn unimplemented_spis_read_as_zero() {
    let mut distributor = Distributor::new(1, 5, 64);
    assert_eq!(distributor.read(0x4, Size::Word), Read::Value(9 << 19 | 1));
    for offset in [0x104, 0x424, 0xc08] {
        let _ = distributor.write(offset, Size::Word, u64::from(u32::MAX));
        assert_ne!(distributor.read(offset, Size::Word), Read::Value(0), "{offset:#x}");
    }
    for offset in [0x108, 0x11c, 0x208, 0x440, 0x4fc, 0xc10] {
        let _ = distributor.write(offset, Size::Word, u64::from(u32::MAX));
        assert_eq!(distributor.read(offset, Size::Word), Read::Value(0), "{offset:#x}");
    }
    let _ = distributor.write(0x6000 + 8 * 64, Size::Double, 1);
    assert_eq!(distributor.read(0x6000 + 8 * 64, Size::Double), Read::Value(0));
    assert!(distributor.set_level(64, true).is_empty() && distributor.pulse(255).is_empty());
}
