//! The text of an account.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::Account;
use crate::{Catalogue, Row};

/// An account as a table, with the columns of `perf kvm stat`; sub-reasons stand indented under
/// their reason. The last line says whether every exit taken has been counted.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub(super) account: &'a Account,
    pub(super) catalogue: &'static Catalogue,
    pub(super) frequency: u64,
}

/// The columns after the first, and how wide each is at least.
const COLUMNS: [(&str, usize); 6] = [("Samples", 10), ("Samples%", 9), ("Time%", 9), ("Min Time", 11), ("Max Time", 11), ("Avg time", 11)];

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.account.total();
        let mut lines: Vec<(String, [String; 6])> = Vec::new();
        for reason in self.account.reasons(self.catalogue) {
            lines.push((reason.name.to_string(), self.cells(&reason.row, &total)));
            // A reason that knows no sub-reasons has all in one row, which says nothing new.
            if let [only] = reason.subs.as_slice()
                && only.name == "other"
            {
                continue;
            }
            for sub in &reason.subs {
                lines.push((format!("  {}", sub.name), self.cells(&sub.row, &total)));
            }
        }

        let first = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(20);
        write!(f, "{:<first$}", "VM-EXIT")?;
        for (title, width) in COLUMNS {
            write!(f, " {title:>width$}")?;
        }
        writeln!(f)?;
        for (name, cells) in &lines {
            write!(f, "{name:<first$}")?;
            for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
                write!(f, " {cell:>width$}")?;
            }
            writeln!(f)?;
        }

        let Account { taken, alive, .. } = *self.account;
        write!(f, "outside the guest {}", self.time(total.ticks))?;
        if alive != 0 {
            write!(f, " of {}, {}", self.time(alive), Percent(total.ticks, alive))?;
        }
        writeln!(f)?;
        let difference = self.account.difference();
        write!(f, "exits counted {}, exits taken {taken}, difference {difference}", total.count)
    }
}

impl Table<'_> {
    fn cells(&self, row: &Row, total: &Row) -> [String; 6] {
        [
            row.count.to_string(),
            Percent(row.count, total.count).to_string(),
            Percent(row.ticks, total.ticks).to_string(),
            self.time(row.min).to_string(),
            self.time(row.max).to_string(),
            self.time(row.mean()).to_string(),
        ]
    }

    fn time(&self, ticks: u64) -> Time {
        Time { ticks, frequency: self.frequency }
    }
}

/// A part of a whole.
struct Percent(u64, u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(part, whole) = *self;
        // In hundredths of a percent, rounded: integers, so that all hosts show the same.
        let whole = u128::from(whole).max(1);
        let hundredths = (u128::from(part) * 10_000 + whole / 2) / whole;
        write!(f, "{}.{:02}%", hundredths / 100, hundredths % 100)
    }
}

/// A time in microseconds, or in ticks if the counter's frequency isn't known.
struct Time {
    ticks: u64,
    frequency: u64,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ticks, frequency } = *self;
        if frequency == 0 {
            return write!(f, "{ticks}t");
        }
        let frequency = u128::from(frequency);
        let hundredths = (u128::from(ticks) * 100_000_000 + frequency / 2) / frequency;
        write!(f, "{}.{:02}us", hundredths / 100, hundredths % 100)
    }
}
