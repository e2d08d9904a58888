//! Net ticks of a loop, and the output line of an operation.

use crate::arch;

/// All ticks: for an operation that measures its iterations itself.
pub fn all_ticks(_n: u64, ticks: u64) -> u64 {
    ticks
}

/// The ticks of a loop minus those of the empty loop.
pub fn net_ticks(n: u64, ticks: u64) -> u64 {
    ticks.saturating_sub(arch::loop_ticks!(n, []))
}

/// Prints an operation's line: the ticks of `iterations` of them. Its length doesn't depend on the figures,
/// so that the cost of printing is the same in each run.
pub fn print(operation: &str, ticks: u64, iterations: u64) {
    let thousandths = arch::thousandths(ticks) / u128::from(iterations.max(1));
    let (whole, part) = (thousandths / 1000, thousandths % 1000);
    arch::print(format_args!(
        "{{\"operation\":\"{operation}\",\"instructions\":{whole:10}.{part:03},\"ticks\":{ticks:14},\"iterations\":{iterations:8}}}\n"
    ));
}

/// Prints the line of an unsupported operation.
pub fn print_skipped(operation: &str) {
    arch::print(format_args!("{{\"operation\":\"{operation}\",\"skipped\":\"not here\"}}\n"));
}
