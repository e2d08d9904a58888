//! What is left of a loop's ticks, and the line that says what came of it.

use crate::arch;

/// All of the ticks: of an operation that takes the times that it is made of itself.
pub fn all_ticks(_n: u64, ticks: u64) -> u64 {
    ticks
}

/// What is left of a loop's ticks without the loop.
pub fn net_ticks(n: u64, ticks: u64) -> u64 {
    ticks.saturating_sub(arch::loop_ticks!(n, []))
}

/// Prints the line of an operation: the ticks of `iterations` of them. Its length doesn't depend on the figures, so that what printing
/// costs is the same in each run.
pub fn print(operation: &str, ticks: u64, iterations: u64) {
    let thousandths = arch::thousandths(ticks) / u128::from(iterations.max(1));
    let (whole, part) = (thousandths / 1000, thousandths % 1000);
    arch::print(format_args!(
        "{{\"operation\":\"{operation}\",\"instructions\":{whole:10}.{part:03},\"ticks\":{ticks:14},\"iterations\":{iterations:8}}}\n"
    ));
}

/// Prints the line of an operation that does not exist here.
pub fn print_skipped(operation: &str) {
    arch::print(format_args!("{{\"operation\":\"{operation}\",\"skipped\":\"not here\"}}\n"));
}
