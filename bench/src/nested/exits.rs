//! Exits per operation.

use std::collections::BTreeMap;

/// Minimum number of exits of a reason per operation. A timer tick interrupts fewer operations than that.
const MINIMUM: f64 = 0.1;

/// Divides the exits of each reason by the number of operations. Reasons with fewer than [`MINIMUM`] exits per operation are left out.
pub fn per_operation(counts: impl Iterator<Item = (String, u64)>, operations: u64) -> BTreeMap<String, f64> {
    let exits = counts.map(|(reason, count)| (reason, count as f64 / operations as f64));
    exits.filter(|(_, exits)| *exits >= MINIMUM).collect()
}

/// Returns the sum of all exits.
pub fn total<'a>(exits: impl IntoIterator<Item = &'a BTreeMap<String, f64>>) -> f64 {
    exits.into_iter().flat_map(BTreeMap::values).fold(0.0, |sum, exits| sum + exits)
}
