//! Every state of a vCPU with one list register and two interrupts, and every one that six operations lead to with two list registers and
//! three interrupts: in each, the guest sees what the reference says, for every next operation.

mod model;

use std::collections::{HashSet, VecDeque};
use std::fmt::{Debug, Write};
use std::hash::{DefaultHasher, Hasher};

use model::machine::Machine;
use stile_vgic::SgiRegister;

const SGI: u32 = 1;
const PPI: u32 = 20;
const SPI: u32 = 40;

#[derive(Clone, Copy, Debug)]
enum Op {
    Sgi,
    Line(bool),
    Pulse,
    Acknowledge,
    End,
    Deactivate(usize),
    Put,
    Load,
}

const OPS: [Op; 10] = [
    Op::Sgi,
    Op::Pulse,
    Op::Acknowledge,
    Op::End,
    Op::Deactivate(0),
    Op::Deactivate(1),
    Op::Put,
    Op::Load,
    // Without the PPI, its operations are left out.
    Op::Line(true),
    Op::Line(false),
];
const WITHOUT_PPI: usize = OPS.len() - 2;

/// One vCPU on one CPU. The SPI preempts the PPI, and that the SGI, if `nests`; else all have one priority.
fn machine(list_registers: usize, split: bool, nests: bool) -> Machine {
    let mut machine = Machine::new(1, 1, list_registers, false);
    machine.enable_groups();
    machine.set_vmcr(0, u64::from(split) << 9, 1 << 9);
    machine.write_redistributor(0, 0x100, 1 << SGI | 1 << PPI);
    machine.write_distributor(0x100 + SPI / 32 * 4, 1 << (SPI % 32));
    machine.write_distributor(0xc00 + SPI / 16 * 4, 2 << (SPI % 16 * 2));
    let [sgi, ppi, spi] = if nests { [0xa0, 0x80, 0x40] } else { [0x80; 3] };
    machine.write_redistributor(0, 0x400 + (SGI & !3), sgi << (SGI % 4 * 8));
    machine.write_redistributor(0, 0x400 + (PPI & !3), ppi << (PPI % 4 * 8));
    machine.write_distributor(0x400 + (SPI & !3), spi << (SPI % 4 * 8));
    machine.settle();
    machine
}

/// Whether the operation makes sense; a guest that does others is in `hostile.rs`.
fn apply(machine: &mut Machine, op: Op) -> bool {
    let loaded = machine.place[0].is_some();
    match op {
        Op::Sgi if loaded => machine.send_sgi(0, SgiRegister::Sgi1r, 1 | u64::from(SGI) << 24),
        Op::Line(high) => machine.set_level(0, PPI, high),
        Op::Pulse => machine.pulse(SPI),
        Op::Acknowledge if loaded => return machine.acknowledge(0).is_some(),
        Op::End if loaded && !machine.taken[0].is_empty() => machine.end(0),
        Op::Deactivate(which) if loaded && which < machine.dropped[0].len() => machine.deactivate(0, which),
        Op::Put => return machine.unload(0),
        Op::Load => return machine.load(0),
        _ => return false,
    }
    true
}

/// A hash of all state that determines the future, written as text.
struct Key(DefaultHasher);

impl Write for Key {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn key(machine: &Machine) -> u64 {
    let mut key = Key(DefaultHasher::new());
    let interface = &machine.interfaces[0];
    let parts: [&dyn Debug; 11] = [
        &machine.distributor,
        &machine.redistributors,
        &machine.pending,
        &machine.place,
        &machine.taken,
        &machine.dropped,
        &machine.reference.private[0][PPI as usize],
        &interface.lr,
        &interface.cpu,
        &interface.maintenance,
        &interface.eoi_count,
    ];
    for part in parts {
        write!(key, "{part:?};").unwrap();
    }
    key.0.finish()
}

/// Visits every state that `depth` of the operations lead to. Returns how many there are, in how many of them list
/// registers were short, and how many operations led to the last new one.
fn explore(list_registers: usize, split: bool, nests: bool, ops: &[Op], depth: usize) -> (usize, usize, usize) {
    let replay = |path: &[Op]| {
        let mut machine = machine(list_registers, split, nests);
        for &op in path {
            apply(&mut machine, op);
            machine.settle();
        }
        machine
    };
    let mut seen = HashSet::from([key(&replay(&[]))]);
    // The shortest path to a state is visited first.
    let mut paths = VecDeque::from([vec![]]);
    let (mut short, mut longest) = (0, 0);
    while let Some(path) = paths.pop_front() {
        for &op in ops {
            let mut machine = replay(&path);
            if !apply(&mut machine, op) {
                continue;
            }
            machine.settle();
            machine.check();
            if seen.insert(key(&machine)) {
                short += usize::from(machine.interfaces[0].maintenance.0 != 0);
                machine.check_registers();
                let mut path = path.clone();
                path.push(op);
                longest = path.len();
                if longest < depth {
                    paths.push_back(path);
                }
            }
        }
    }
    (seen.len(), short, longest)
}

#[test]
fn one_list_register() {
    for (split, nests) in [(false, false), (true, false), (false, true), (true, true)] {
        let (states, short, longest) = explore(1, split, nests, &OPS[..WITHOUT_PPI], 30);
        assert!(states > 50 && short > 0, "{states} states, {short} with too few list registers");
        assert!(longest < 30, "the states do not end");
    }
}

#[test]
fn two_list_registers() {
    for (split, nests) in [(false, true), (true, false)] {
        let (states, short, _) = explore(2, split, nests, &OPS, 6);
        assert!(states > 500 && short > 0, "{states} states, {short} with too few list registers");
    }
}
