//! Figures in the CPU's cycles and instructions, for machines that are no emulators: of the guest and its hypervisor together.

use core::fmt;

use crate::arch::{self, Platform};
use crate::operation::Operation;

/// Values of the CPU's counters.
#[derive(Clone, Copy)]
struct Counters {
    cycles: Option<u64>,
    instructions: Option<u64>,
}

/// A counter's value for each operation; `None` without the counter.
struct Each {
    counted: Option<u64>,
    iterations: u64,
}

impl Counters {
    fn read() -> Self {
        Self { cycles: arch::cycles(), instructions: arch::instructions() }
    }

    /// Counts since `before`. Counters of instructions may have 32 bits.
    fn since(self, before: Self) -> Self {
        let difference = |now: Option<u64>, before: Option<u64>| Some(now?.wrapping_sub(before?));
        let short = |counted| counted & u64::from(u32::MAX);
        Self { cycles: difference(self.cycles, before.cycles), instructions: difference(self.instructions, before.instructions).map(short) }
    }
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(counted) = self.counted else { return f.write_str("\"not available\"") };
        let thousandths = u128::from(counted) * 1000 / u128::from(self.iterations.max(1));
        write!(f, "{}.{:03}", thousandths / 1000, thousandths % 1000)
    }
}

/// Measures the loop without an operation, which is in all figures of cycles and instructions.
pub fn measure_loop(iterations: u64) {
    let before = Counters::read();
    let ticks = arch::loop_ticks!(iterations, []);
    print("loop", ticks, Counters::read().since(before), iterations);
}

/// Measures an operation, and prints its line.
pub fn measure(platform: &Platform, operation: &Operation, iterations: u64) {
    let before = Counters::read();
    let ticks = (operation.run)(platform, iterations);
    let counted = Counters::read().since(before);
    print(operation.name, (operation.net)(iterations, ticks), counted, iterations);
}

fn print(operation: &str, ticks: u64, counted: Counters, iterations: u64) {
    let each = |counted| Each { counted, iterations };
    arch::print(format_args!(
        "{{\"operation\":\"{operation}\",\"ticks\":{},\"cycles\":{},\"instructions\":{},\"iterations\":{iterations}}}\n",
        each(Some(ticks)),
        each(counted.cycles),
        each(counted.instructions)
    ));
}
