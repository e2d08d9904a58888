//! L2's fault on one CPU and L1's maintenance on another, in all interleavings of their steps. All orders of their memory
//! accesses: `fuzz/tests/interleavings/fills.rs`.

use stile_nested_arm::shadow::{Invalidations, Observed};

/// The page that L1 maps at first, and its replacement.
const OLD: u64 = 1;
const NEW: u64 = 2;

/// The machine: L1's entry, the shadow's entry, the lock, and each CPU's progress.
struct Machine {
    invalidations: Invalidations,
    table: u64,
    shadow: Option<u64>,
    locked_by: Option<usize>,
    observed: Option<Observed>,
    walked: u64,
    done: [usize; 2],
    compares: bool,
}

const FILLER: usize = 0;
const L1: usize = 1;
const STEPS: [usize; 2] = [5, 5];

impl Machine {
    fn new(compares: bool) -> Self {
        let invalidations = Invalidations::new();
        Self { invalidations, table: OLD, shadow: None, locked_by: None, observed: None, walked: 0, done: [0; 2], compares }
    }

    /// Executes the next step of a CPU. Returns false if it waits for the lock.
    fn step(&mut self, cpu: usize) -> bool {
        match (cpu, self.done[cpu]) {
            (FILLER, 0) => self.observed = Some(self.invalidations.observe()),
            (FILLER, 1) => self.walked = self.table,
            (FILLER, 3) => {
                if !self.compares || self.invalidations.is_current(self.observed.unwrap()) {
                    self.shadow = Some(self.walked);
                }
            }
            // L1 changes its table, and its trapped TLBI invalidates.
            (L1, 0) => self.table = NEW,
            (L1, 2) => self.invalidations.record(),
            (L1, 3) => self.shadow = None,
            // The lock.
            (FILLER, 2) | (L1, 1) => {
                if self.locked_by.is_some() {
                    return false;
                }
                self.locked_by = Some(cpu);
            }
            (_, 4) => self.locked_by = None,
            _ => unreachable!(),
        }
        self.done[cpu] += 1;
        true
    }
}

/// Runs the interleaving encoded in `bits`: the CPU of each step. `None` if it is impossible.
fn run(bits: u32, compares: bool) -> Option<Option<u64>> {
    let mut machine = Machine::new(compares);
    for n in 0..STEPS.iter().sum() {
        let cpu = (bits >> n & 1) as usize;
        if machine.done[cpu] == STEPS[cpu] || !machine.step(cpu) {
            return None;
        }
    }
    Some(machine.shadow)
}

fn results(compares: bool) -> Vec<Option<u64>> {
    (0..1 << 10).filter_map(|bits| run(bits, compares)).collect()
}

#[test]
fn no_interleaving_leaves_a_stale_mapping() {
    let results = results(true);
    // The walk anywhere among L1's steps, or L1's change anywhere among the filler's.
    assert_eq!(results.len(), 21 + 6);
    assert!(results.iter().all(|&left| left != Some(OLD)));
    assert!(results.contains(&Some(NEW)), "no order maps anything");
}

#[test]
fn without_the_comparison_a_stale_mapping_remains() {
    assert!(results(false).contains(&Some(OLD)));
}
