//! Sharing between CPUs: counts at EL2 while a regime's second stage is loaded, and its atomic writes to cache lines
//! that EL2 also writes atomically with another regime loaded.

use std::collections::HashMap;

use serde::Serialize;

use crate::counts::Counts;
use crate::decode::KINDS;
use crate::regime::Regime;

/// Bytes of a cache line, as a power of two.
const LINE_SHIFT: u32 = 6;

/// Counts at EL2 by the regime whose second stage is loaded. A regime with dedicated CPUs identifies those CPUs. The
/// emulator does not: if one thread runs all CPUs, callbacks get the number of the CPU for which a block was
/// translated.
#[derive(Debug, Default, Clone)]
pub struct Sharing(HashMap<Regime, Loaded>);

/// Counts at EL2 while a regime is loaded.
#[derive(Debug, Default, Clone)]
struct Loaded {
    counts: [u64; KINDS],
    failed: u64,
    spins: u64,
    /// Atomic writes by cache line.
    lines: HashMap<u64, u64>,
}

/// Counts at EL2 in a section, on the CPUs that had the section's guest loaded.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Part {
    el2: Counts,
    /// Atomic writes: stores-exclusive, and instructions that load and store.
    atomics: u64,
    /// Those to cache lines that were also written atomically with another regime loaded in the section.
    shared: u64,
    /// Stores-exclusive that did not store.
    failed: u64,
    /// YIELDs: polls of a CPU that waits for another one.
    spins: u64,
}

impl Sharing {
    /// Counts instructions at EL2.
    pub fn ran(&mut self, loaded: Regime, counts: &[u32; KINDS]) {
        let sums = &mut self.0.entry(loaded).or_default().counts;
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
    }

    /// Counts an atomic write.
    pub fn wrote(&mut self, loaded: Regime, address: u64) {
        *self.0.entry(loaded).or_default().lines.entry(address >> LINE_SHIFT).or_default() += 1;
    }

    /// Counts a failed store-exclusive.
    pub fn failed(&mut self, loaded: Regime) {
        self.0.entry(loaded).or_default().failed += 1;
    }

    /// Counts a poll of a CPU that waits for another one.
    pub fn spun(&mut self, loaded: Regime) {
        self.0.entry(loaded).or_default().spins += 1;
    }

    /// Difference to `before`, on the CPUs that have this regime loaded.
    pub fn since(&self, before: &Self, guest: Regime) -> Part {
        let none = Loaded::default();
        let of = |sharing: &'_ Self, regime| sharing.0.get(&regime).cloned().unwrap_or_default();
        let (now, then) = (self.0.get(&guest).unwrap_or(&none), of(before, guest));
        let more = |of: &Loaded, than: &Loaded, line: &u64| of.lines.get(line).unwrap_or(&0) - than.lines.get(line).unwrap_or(&0);
        let is_shared = |line: &u64| {
            let mut others = self.0.iter().filter(|(regime, _)| **regime != guest);
            others.any(|(regime, other)| more(other, before.0.get(regime).unwrap_or(&none), line) > 0)
        };
        let writes = || now.lines.keys().map(|line| (line, more(now, &then, line)));
        Part {
            el2: std::array::from_fn(|kind| now.counts[kind] - then.counts[kind]).into(),
            atomics: writes().map(|(_, count)| count).sum(),
            shared: writes().filter(|(line, count)| *count > 0 && is_shared(line)).map(|(_, count)| count).sum(),
            failed: now.failed - then.failed,
            spins: now.spins - then.spins,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Regime = Regime::new(1, 0x1000);
    const OTHER: Regime = Regime::new(1, 0x2000);

    #[test]
    fn a_line_is_shared_if_both_write_it_in_the_section() {
        let mut sharing = Sharing::default();
        sharing.ran(GUEST, &[100; KINDS]);
        sharing.wrote(GUEST, 0x8000);
        // Only before the section.
        sharing.wrote(OTHER, 0x9000);
        let before = sharing.clone();
        sharing.ran(GUEST, &[7, 1, 0, 0, 0, 2, 3]);
        sharing.ran(OTHER, &[1000; KINDS]);
        sharing.wrote(GUEST, 0x8000);
        sharing.wrote(GUEST, 0x803c);
        sharing.wrote(GUEST, 0x9000);
        sharing.wrote(OTHER, 0x8020);
        sharing.failed(OTHER);
        sharing.spun(GUEST);
        sharing.failed(GUEST);
        let expected = Part { el2: Counts::from([7, 1, 0, 0, 0, 2, 3]), atomics: 3, shared: 2, failed: 1, spins: 1 };
        assert_eq!(sharing.since(&before, GUEST), expected);
        assert_eq!(sharing.since(&sharing.clone(), GUEST), Part::default());
    }
}
