//! Every sequence of three operations on a small geometry, against the reference, and every allocation of each made to fail.
//!
//! States that sequences have in common are visited once: an operation depends on the valid entries alone ([`Machine::layout`]).

use super::machine::{Machine, VMSA};
use super::reference::Reference;
use super::{GIB, KIB_4, MIB_2, apply, compare};
use crate::Operation;
use std::collections::HashSet;
use stile_paging::registers::PaRange;
use stile_paging::table::{Attributes, Error, Geometry, Level, Mapping, MemoryType, PageTable, Stage2, Stage2Permissions};

type Permissions = Stage2Permissions;

const ALL: Attributes<Permissions> = Attributes { memory: MemoryType::Normal, permissions: Permissions::ALL };

/// One reachable state: the tables, and what they should say.
#[derive(Clone)]
struct State {
    machine: Machine,
    reference: Reference<Attributes<Permissions>>,
}

impl State {
    fn fork(&self) -> Self {
        Self { machine: self.machine.fork(), reference: self.reference.clone() }
    }

    /// Runs an operation for which no more than `budget` tables can be allocated, and checks all that it did. Returns whether there was
    /// memory enough.
    fn run(&mut self, geometry: Geometry, operation: &Operation<Permissions>, budget: usize, probes: &[u64]) -> bool {
        let Self { machine, reference } = self;
        let (mut memory, mut tlb) = machine.parts();
        machine.0.borrow_mut().budget = budget;
        let before = machine.layout();
        let tables = machine.tables();
        let mut table = PageTable::new(Stage2::default(), geometry, machine.root()).unwrap();
        let result = match *operation {
            Operation::Map(mapping) => table.map(&mut memory, mapping).map(|()| mapping.size),
            Operation::Unmap { address, size } => table.unmap(&mut memory, &mut tlb, address, size),
            Operation::Protect { address, size, permissions } => table.protect(&mut memory, &mut tlb, address, size, permissions),
            Operation::Clear => {
                table.clear(&mut memory, &mut tlb);
                Ok(0)
            }
        };
        machine.check();
        let first_mapped = match *operation {
            Operation::Map(Mapping { address, size, .. }) => reference.first_mapped(address, address + size),
            _ => None,
        };
        match result {
            Ok(bytes) => assert_eq!((bytes, first_mapped), (apply(reference, operation), None)),
            Err(error) => {
                let out_of_memory = error == Error::OutOfMemory && budget < usize::MAX;
                assert!(out_of_memory || Some(error) == first_mapped.map(Error::AlreadyMapped), "{operation:?}: {error:?}");
                assert_eq!((before, tables), (machine.layout(), machine.tables()), "a refused operation changed something");
            }
        }
        compare(&table, machine, reference, &memory, probes);
        result != Err(Error::OutOfMemory)
    }
}

/// Every operation on every range between two of the `bounds`. Outputs are once as aligned as inputs, and once off by `off`.
fn operations(bounds: &[u64], off: u64) -> Vec<Operation<Permissions>> {
    let ranges = bounds.iter().flat_map(|&start| bounds.iter().filter(move |&&end| end > start).map(move |&end| (start, end - start)));
    let mut operations: Vec<_> = ranges
        .flat_map(|(address, size)| {
            let map = |output| Operation::Map(Mapping { address, output, size, attributes: ALL });
            let protect = Operation::Protect { address, size, permissions: Permissions::READ };
            [map(address + GIB), map(address + GIB + off), Operation::Unmap { address, size }, protect]
        })
        .collect();
    operations.push(Operation::Clear);
    operations
}

/// Returns how many states there are after fewer than three operations, and how often an allocation failed.
fn explore(geometry: Geometry, bounds: &[u64], off: u64) -> (usize, usize) {
    let operations = operations(bounds, off);
    let probes: Vec<u64> = bounds.iter().flat_map(|&bound| [bound.saturating_sub(1), bound]).collect();
    let mut level = vec![State { machine: Machine::new(&geometry, VMSA), reference: Reference::new() }];
    let mut seen = HashSet::from([level[0].machine.layout()]);
    let (mut states, mut failures) = (0, 0);
    for depth in 1..=3 {
        states += level.len();
        let mut next = Vec::new();
        for state in &level {
            for operation in &operations {
                // Each allocation fails in turn, until the operation succeeds with as many as it needs.
                let mut after = state.fork();
                for budget in (0..).take_while(|_| depth < 3) {
                    assert!(budget < 8, "{operation:?} allocates without end");
                    if after.run(geometry, operation, budget, &probes) {
                        break;
                    }
                    failures += 1;
                }
                if depth == 3 {
                    after.run(geometry, operation, usize::MAX, &probes);
                } else if seen.insert(after.machine.layout()) {
                    next.push(after);
                }
            }
        }
        level = next;
    }
    (states, failures)
}

#[test]
fn two_entries_of_level_2() {
    let geometry = Geometry::stage2_from(Level::L2, 22, PaRange::Bits32).unwrap();
    let (states, failures) = explore(geometry, &[0, KIB_4, MIB_2, 2 * MIB_2 - KIB_4, 2 * MIB_2], KIB_4);
    assert!(states > 100 && failures > 100, "{states} states, {failures} failures");
}

#[test]
fn two_entries_of_level_1() {
    let geometry = Geometry::stage2_from(Level::L1, 31, PaRange::Bits36).unwrap();
    let (states, failures) = explore(geometry, &[0, MIB_2, GIB, GIB + KIB_4, 2 * GIB], MIB_2);
    assert!(states > 100 && failures > 100, "{states} states, {failures} failures");
}
