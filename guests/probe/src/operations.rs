//! The operations, by the names of the field's micro-benchmarks: each architecture has its own.

use crate::arch::{self, Platform};
use crate::measure;

/// One operation.
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// It runs so many times less often than asked for: it is slow, or waits.
    pub seldom: u64,
    /// Runs it so many times; the ticks of all together.
    pub run: fn(&Platform, u64) -> u64,
    /// What is left of them without what measuring takes.
    pub net: fn(u64, u64) -> u64,
}

/// Which virtual CPUs an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// One.
    One,
    /// Two that run at the same time.
    Two,
    /// Two that share a physical CPU. The guest can't know, so it must be asked for by name.
    Shared,
}

/// Runs before the measured ones: what is done once only, such as a second-stage fault, is over then.
const WARM_UP: u64 = 16;

/// Measures the operations that are asked for and possible, and prints their lines.
pub fn run_all(platform: &Platform) {
    let mut second = false;
    for operation in &arch::OPERATIONS {
        if !platform.arguments.wants(operation.name, operation.needs != Needs::Shared) {
            continue;
        }
        if operation.needs != Needs::One {
            second = second || arch::start_second(platform);
            if !second {
                measure::print_skipped(operation.name);
                continue;
            }
        }
        let faults = arch::faults();
        (operation.run)(platform, WARM_UP);
        if arch::faults() != faults {
            measure::print_skipped(operation.name);
            continue;
        }
        let n = (platform.arguments.iterations / operation.seldom).max(1);
        arch::begin_section();
        let ticks = (operation.run)(platform, n);
        arch::end_section();
        measure::print(operation.name, (operation.net)(n, ticks), n);
    }
}
