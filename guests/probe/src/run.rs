//! Runs the selected operations.

use crate::arch::{self, Platform};
use crate::counted;
use crate::measure;
use crate::operation::Needs;
use crate::restart;

/// Iterations before the measurement, for one-time costs such as second-stage faults.
const WARM_UP: u64 = 16;

/// Measures the selected and supported operations, and prints their lines. With the argument `endless` it runs the first one forever, and
/// neither marks nor prints anything.
pub fn run_all(platform: &Platform) {
    if platform.arguments.wants(restart::NAME, false) {
        return restart::run(platform);
    }
    if platform.arguments.counters {
        counted::measure_loop(platform.arguments.iterations);
    }
    let mut second = false;
    for operation in &arch::OPERATIONS {
        if !platform.arguments.wants(operation.name, !matches!(operation.needs, Needs::Shared | Needs::All)) {
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
        let n = (platform.arguments.iterations / operation.divisor).max(1);
        if platform.arguments.counters {
            counted::measure(platform, operation, n);
            continue;
        }
        arch::begin_section();
        let ticks = (operation.run)(platform, n);
        arch::end_section();
        measure::print(operation.name, (operation.net)(n, ticks), n);
    }
}
