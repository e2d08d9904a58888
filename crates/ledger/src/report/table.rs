//! The text of an account.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::account::{Account, total};
use crate::{Catalogue, Row};

/// An account as a table with the columns of `perf kvm stat`; sub-reasons are indented under their reason.
/// The last line shows whether every exit taken was counted.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    account: &'a Account,
    catalogue: &'static Catalogue,
    frequency: u64,
    folded: bool,
}

impl Account {
    /// The account as text, with the columns of `perf kvm stat`. `frequency` is the counter's, in Hz; with 0,
    /// times are in ticks.
    pub fn table(&self, catalogue: &'static Catalogue, frequency: u64) -> Table<'_> {
        Table { account: self, catalogue, frequency, folded: false }
    }
}

/// The titles of the columns after the first.
const TITLES: [&str; 6] = ["Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time"];

/// The heading of the first column, and its minimum width.
const FIRST: (&str, usize) = ("VM-EXIT", 20);

/// A row is small if its fraction of both exits and time is less than one in this many.
const SMALL: u64 = 1000;

/// A line of the table.
struct Line {
    name: String,
    cells: [String; 6],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.account.total();
        let lines = self.lines(&total);
        let first = lines.iter().map(|line| line.name.len()).fold(FIRST.1, usize::max);
        let widths: [usize; 6] =
            core::array::from_fn(|column| lines.iter().map(|line| line.cells[column].len()).fold(TITLES[column].len(), usize::max));
        write!(f, "{:<first$}", FIRST.0)?;
        for (title, width) in TITLES.into_iter().zip(widths) {
            write!(f, " {title:>width$}")?;
        }
        writeln!(f)?;
        for Line { name, cells } in &lines {
            write!(f, "{name:<first$}")?;
            for (cell, width) in cells.iter().zip(widths) {
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
    /// Merges small rows, those with less than 0.1 % of both exits and time: the sub-reasons of each reason
    /// into one line, and small reasons into one line at the end.
    pub fn folded(self) -> Self {
        Self { folded: true, ..self }
    }

    fn lines(&self, total: &Row) -> Vec<Line> {
        let mut lines = Vec::new();
        let reasons = self.account.reasons(self.catalogue);
        let (shown, small) = self.split(&reasons, total, |reason| &reason.row);
        for reason in shown {
            lines.push(self.line(reason.name.to_string(), &reason.row, total));
            // A reason without sub-reasons has a single row, equal to the reason's line.
            if let [only] = reason.subs.as_slice()
                && only.name == "other"
            {
                continue;
            }
            let (shown, small) = self.split(&reason.subs, total, |sub| &sub.row);
            lines.extend(shown.iter().map(|sub| self.line(format!("  {}", sub.name), &sub.row, total)));
            if !small.is_empty() {
                lines.push(self.line(format!("  {} others", small.len()), &sum(&small, |sub| &sub.row), total));
            }
        }
        if !small.is_empty() {
            lines.push(self.line(format!("{} other reasons", small.len()), &sum(&small, |reason| &reason.row), total));
        }
        lines
    }

    /// Separates rows with a line of their own from folded rows. A single small row keeps its line: folding
    /// saves none.
    fn split<'r, T>(&self, rows: &'r [T], total: &Row, row: impl Fn(&T) -> &Row) -> (Vec<&'r T>, Vec<&'r T>) {
        let is_small = |of: &T| {
            let Row { count, ticks, .. } = *row(of);
            count.saturating_mul(SMALL) < total.count && ticks.saturating_mul(SMALL) < total.ticks
        };
        let (small, large): (Vec<_>, Vec<_>) = rows.iter().partition(|row| self.folded && is_small(row));
        if small.len() < 2 { (rows.iter().collect(), Vec::new()) } else { (large, small) }
    }

    fn line(&self, name: String, row: &Row, total: &Row) -> Line {
        Line { name, cells: self.cells(row, total) }
    }
}

/// The sum of rows.
fn sum<'r, T>(rows: &[&'r T], row: impl Fn(&'r T) -> &'r Row) -> Row {
    total(rows.iter().map(|of| row(of)))
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

/// A fraction, shown in percent.
struct Percent(u64, u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(part, whole) = *self;
        // Hundredths of a percent, rounded, in integers: the same result on all hosts.
        let whole = u128::from(whole).max(1);
        let hundredths = (u128::from(part) * 10_000 + whole / 2) / whole;
        write!(f, "{}.{:02}%", hundredths / 100, hundredths % 100)
    }
}

/// A time in microseconds, or in ticks if the counter's frequency is unknown.
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
