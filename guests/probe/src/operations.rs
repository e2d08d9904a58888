//! The operations, named after common micro-benchmarks; each architecture has its own.

use crate::arch::{self, Platform};
use crate::measure;

/// An operation.
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Its requirements.
    pub needs: Needs,
    /// Divisor of the number of iterations, for operations that are slow or wait.
    pub seldom: u64,
    /// Runs it a number of times and returns the total ticks.
    pub run: fn(&Platform, u64) -> u64,
    /// Subtracts the measurement overhead.
    pub net: fn(u64, u64) -> u64,
}

/// The virtual CPUs that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// One.
    One,
    /// Two that run at the same time.
    Two,
    /// Two that share a physical CPU. The guest can't detect this, so it must be selected by name.
    Shared,
}

/// Iterations before the measurement, for one-time costs such as second-stage faults.
const WARM_UP: u64 = 16;

/// Measures the selected and supported operations, and prints their lines. With the argument `endless` it runs the first one forever, and
/// neither marks nor prints anything.
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
        if platform.arguments.endless {
            loop {
                (operation.run)(platform, platform.arguments.iterations);
            }
        }
        let n = (platform.arguments.iterations / operation.seldom).max(1);
        arch::begin_section();
        let ticks = (operation.run)(platform, n);
        arch::end_section();
        measure::print(operation.name, (operation.net)(n, ticks), n);
    }
}
