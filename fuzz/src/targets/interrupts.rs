//! Registers of the interrupt controllers, and the interrupts that they deliver.

// Shared with the tests of crates `vgic` and `apic`.
#[path = "../../../crates/vgic/tests/model/mod.rs"]
mod model;
#[path = "../../../crates/apic/tests/processor/mod.rs"]
mod processor;

use model::hostile;
use model::machine::Machine;
use model::operations::{self, PPI, SGIS, SPIS, VCPUS};
use processor::Event;
use stile_apic::{Delivery, Destination, Effect, IoApic, LocalApic, Message, Pages, Received};
use stile_vgic::{GICD_SIZE, GICR_SIZE, SgiRegister};

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// Any values in any register of the GIC, on three vCPUs that share two CPUs.
pub const VGIC: Target = Target { name: "vgic", run: vgic, seeds: none, mutations: 400, marks: &["write", "read", "move"] };

/// Operations whose result a guest may rely on, compared with a GIC without list registers.
pub const VGIC_AGAINST_REFERENCE: Target = Target {
    name: "vgic-against-reference",
    run: vgic_against_reference,
    seeds: none,
    mutations: 120,
    marks: &["acknowledge", "end", "deactivate", "unload", "sgi"],
};

/// Any values in any register of two local APICs, which send each other messages.
pub const APIC: Target =
    Target { name: "apic", run: apic, seeds: none, mutations: 3000, marks: &["send", "end", "timer", "acknowledge", "#GP", "base"] };

/// A processor with APIC virtualization against the software model.
pub const APIC_VIRTUALIZED: Target =
    Target { name: "apic-virtualized", run: apic_virtualized, seeds: none, mutations: 2000, marks: &["take", "end"] };

/// Any values in any register of the I/O APIC, with lines that change.
pub const IO_APIC: Target =
    Target { name: "io-apic", run: io_apic, seeds: none, mutations: 4000, marks: &["edge", "level", "end", "several", "refused"] };

fn vgic(bytes: &[u8]) {
    use hostile::Op;
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let list_registers = usize::from(flags & 0xf) + 1;
    let mut machine = Machine::new(3, 2, list_registers, false);
    for interface in &mut machine.interfaces {
        interface.hostile = true;
        interface.vgrp0d_follows_group1 = flags & 0x10 != 0;
    }
    machine.enable_groups();
    machine.late = flags & 0x20 != 0;
    let mut count = 0;
    while !input.is_empty() && count < 300 {
        count += 1;
        let kind = input.byte();
        let v = usize::from(kind >> 6) % 3;
        let op = match kind % 11 {
            0 => Op::Distributor { offset: offset(&mut input, GICD_SIZE), sas: sas(&mut input), value: stored(&mut input) },
            1 => Op::Redistributor { v, offset: offset(&mut input, GICR_SIZE), sas: sas(&mut input), value: stored(&mut input) },
            2 => Op::Sgi { v, value: input.value() },
            3 => Op::Vmcr { v, value: input.value() },
            4 => Op::Acknowledge { v },
            5 => Op::EndOfInterrupt { v, intid: input.below(1024) as u32, group1: input.bit() },
            6 => Op::Deactivate { v, intid: input.word() },
            7 => Op::Line { intid: input.below(300) as u32, high: input.bit() },
            8 => Op::Timer { v, high: input.bit() },
            9 => Op::Exit { v },
            _ => {
                reach("move");
                Op::Move { v }
            }
        };
        if let Op::Distributor { value, .. } | Op::Redistributor { value, .. } = &op {
            reach(if value.is_some() { "write" } else { "read" });
        }
        hostile::apply(&mut machine, op);
    }
    machine.settle();
    for v in 0..3 {
        machine.unload(v);
        machine.redistributors[v].reset();
    }
    machine.distributor.reset();
    let new = Machine::new(3, 0, list_registers, false);
    assert!(machine.distributor == new.distributor && machine.redistributors == new.redistributors, "a reset restores the initial state");
}

fn offset(input: &mut Input<'_>, size: u64) -> u32 {
    let at = u32::from(input.half());
    match at >> 14 {
        0 => at & 0xffc,
        1 => 0x6000 | at & 0xffc,
        2 => size as u32 - 0x1_0000 + (at & 0xffc),
        _ => (at & 0x3fff | u32::from(input.byte()) << 14) % size as u32,
    }
}

fn sas(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        size @ 0..4 => size.into(),
        _ => 2,
    }
}

fn stored(input: &mut Input<'_>) -> Option<u64> {
    (input.byte() >= 64).then(|| input.value())
}

fn vgic_against_reference(bytes: &[u8]) {
    use operations::Op;
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let mut machine = Machine::new(VCPUS, 2 + usize::from(flags >> 4 & 1), usize::from(flags & 0xf) + 1, flags & 0x20 != 0);
    operations::set_up(&mut machine);
    let mut count = 0;
    while !input.is_empty() && count < 200 {
        count += 1;
        let kind = input.byte();
        let v = usize::from(kind >> 5) % VCPUS;
        let op = match kind % 32 {
            0 | 1 => Op::Level { intid: input.pick(&LINES), v, high: input.bit() },
            2 => Op::Pulse { intid: input.pick(&SPIS) },
            3 => Op::Timer { v, intid: input.pick(&model::HW_PPIS), high: input.bit() },
            4..7 => {
                reach("sgi");
                let register = if kind >> 5 == 7 { SgiRegister::Sgi0r } else { SgiRegister::Sgi1r };
                Op::Sgi { v, register, targets: (input.byte() & 7).into(), intid: input.pick(&SGIS) }
            }
            7..10 => {
                let (which, intid) = (input.byte(), intid(&mut input));
                Op::Write { v, kind: u32::from(which % 7) + 1, intid, more: if which > 200 { input.word() } else { 0 } }
            }
            10 => Op::Priority { v, intid: intid(&mut input), value: input.byte() & 0xf8 },
            11 => Op::Config { v, intid: intid(&mut input), edge: input.bit() },
            12 => Op::Route { intid: input.pick(&SPIS), route: input.pick(&[0, 1, 2, 1 << 31, 0x100]) },
            13 => Op::Enables { value: u32::from(input.byte() & 3) },
            14 => Op::PriorityMask { v, value: input.pick(&[0xf8, 0xf0, 0x80, 0x40, 0]) },
            15 => Op::GroupEnables { v, value: (input.byte() & 3).into() },
            16 => {
                let bits = input.byte();
                Op::Modes { v, split: bits & 1 != 0, common: bits & 2 != 0, binary_point: 2 + u64::from(bits >> 2) % 6 }
            }
            17..21 => {
                reach("acknowledge");
                Op::Acknowledge { v }
            }
            21..24 => {
                reach("end");
                Op::End { v }
            }
            24 | 25 => {
                reach("deactivate");
                Op::Deactivate { v, which: input.below(8) }
            }
            26 | 27 => {
                reach("unload");
                Op::Unload { v }
            }
            28 | 29 => Op::Load { v },
            _ => Op::Read { v, kind: u32::from(input.byte() % 7) + 1, n: u32::from(input.byte() % 8) },
        };
        operations::apply(&mut machine, op);
        machine.settle();
        machine.check();
    }
    machine.check_registers();
    machine.settle();
    machine.check();
}

const LINES: [u32; 9] = [PPI, 32, 33, 34, 47, 63, 64, 130, 255];

fn intid(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        at @ 0..100 => SPIS[usize::from(at) % SPIS.len()],
        at @ 100..150 => SGIS[usize::from(at) % SGIS.len()],
        at => [PPI, 27, 30][usize::from(at) % 3],
    }
}

thread_local! {
    /// Reused, because they live forever.
    static PAGES: [&'static Pages; 2] = [processor::pages(), processor::pages()];
}

fn apic(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let pages = PAGES.with(|pages| *pages);
    for (id, pages) in pages.into_iter().enumerate() {
        pages.reset(id as u32, id == 0);
    }
    let mut apics = pages.map(LocalApic::new);
    let mut now = 0u64;
    let mut count = 0;
    while !input.is_empty() && count < 200 {
        count += 1;
        let kind = input.byte();
        let (me, other) = (usize::from(kind & 1), usize::from(!kind & 1));
        let apic = &mut apics[me];
        let effect = match kind >> 1 & 7 {
            0 | 1 => apic.write(u32::from(input.byte()) << 4 & 0xff0, input.value() as u32, now),
            2 => match apic.write_msr(0x800 + u32::from(input.byte()), input.value(), now) {
                Ok(effect) => effect,
                Err(_) => {
                    reach("#GP");
                    Effect::None
                }
            },
            3 => {
                if apic.set_base(input.value(), 39).is_ok() {
                    reach("base");
                }
                Effect::None
            }
            4 => {
                now = now.saturating_add(input.value() >> 8);
                let _ = apic.expire_timer(now);
                Effect::Timer
            }
            5 => {
                if let Some(vector) = apic.acknowledge() {
                    reach("acknowledge");
                    assert!(vector >= 16, "vectors below 16 are errors");
                }
                apic.end()
            }
            6 => {
                let offset = u32::from(input.byte()) << 4;
                let _ = (apic.read(offset, now), apic.read_msr(0x800 + offset / 16, now), apic.plain(offset));
                Effect::None
            }
            _ => {
                // From the I/O APIC, or INIT.
                let vector = input.byte();
                if vector == 0 {
                    apic.init();
                } else {
                    let message = Message { destination: Destination::Own, delivery: Delivery::Fixed, vector, level: input.bit() };
                    let _ = apic.pages().receive(message);
                    apic.merge();
                }
                Effect::None
            }
        };
        match effect {
            Effect::Send(message) => {
                reach("send");
                for (at, pages) in pages.iter().enumerate() {
                    if pages.is_target(message.destination, me as u32)
                        && let Received::Interrupt | Received::Level = pages.receive(message)
                    {
                        apics[at].merge();
                    }
                }
            }
            Effect::End(_) => reach("end"),
            Effect::Timer => reach("timer"),
            Effect::None => {}
            Effect::Reclaim { .. } => panic!("no timer was passed through"),
        }
        let _ = apics[other].pending();
        if let Some(deadline) = apics[me].timer_deadline() {
            // A guest must not cause a storm: the next deadline is in the future once the timer was served.
            let _ = apics[me].expire_timer(now.max(deadline));
            assert!(apics[me].timer_deadline().is_none_or(|next| next > now.max(deadline)), "a timer that never ends");
        }
    }
}

fn apic_virtualized(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let posted = input.bit();
    let mut events = Vec::new();
    while !input.is_empty() && events.len() < 150 {
        // A vector is always either edge- or level-triggered, as in hardware.
        let vector = |input: &mut Input<'_>| input.byte().max(0x10);
        let edge = |vector: u8| if vector.is_multiple_of(5) { vector ^ 1 } else { vector };
        events.push(match input.byte() % 16 {
            0..4 => {
                let vector = vector(&mut input);
                Event::Message(vector, vector.is_multiple_of(5))
            }
            4 | 5 => Event::SelfIpi(edge(vector(&mut input))),
            6 | 7 => Event::Own(edge(vector(&mut input))),
            8..11 => {
                reach("take");
                Event::Take
            }
            11 | 12 => {
                reach("end");
                Event::End
            }
            13 => Event::EmulatedEnd,
            14 => Event::Priority(input.byte()),
            _ if input.bit() => Event::Wait,
            _ => Event::Exit,
        });
    }
    processor::compare(events, posted, PAGES.with(|pages| *pages));
}

fn io_apic(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut apic = IoApic::new();
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => {
                let (offset, value) = (u32::from(input.byte()), input.value());
                apic.write(offset, value as u32);
            }
            1 => {
                apic.write(0, u32::from(input.byte()));
                apic.write(0x10, input.word());
                let _ = (apic.read(0), apic.read(0x10));
            }
            2 => apic.set_line(input.byte().into(), input.bit()),
            _ => {
                reach("end");
                apic.end(input.byte());
            }
        }
        // Each pin delivers once: a level-triggered one waits for the end of its interrupt.
        for sent in 0.. {
            let Some(batch) = apic.next_batch() else { break };
            reach(if batch.message().level { "level" } else { "edge" });
            if batch.pins().count_ones() > 1 {
                reach("several");
            }
            if input.bit() {
                reach("refused");
                apic.refused(&batch, batch.pins());
            }
            assert!(sent < stile_apic::PINS, "a pin delivers without end");
        }
        assert!(!apic.has_signals() || apic.next_batch().is_none());
    }
}
