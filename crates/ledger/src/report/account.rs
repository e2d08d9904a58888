//! Rows of one vCPU or several, added up and sorted.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::{Catalogue, Ledger, ROWS, Row, RowKey};

/// Counters by row, for one or several vCPUs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    rows: BTreeMap<RowKey, Row>,
    /// Exits taken, as the vector counted them.
    pub taken: u64,
    /// Time since the vCPUs were powered on, in ticks; 0 if unknown.
    pub alive: u64,
}

impl Account {
    /// An empty account.
    pub fn new() -> Self {
        Self::default()
    }

    /// The account of a ledger.
    pub fn of(ledger: &Ledger) -> Self {
        let mut account = Self { taken: ledger.taken, ..Self::default() };
        for entry in ledger.entries() {
            account.add(entry.key, &entry.row);
        }
        account
    }

    /// Merges a row into that with the same key.
    pub fn add(&mut self, key: RowKey, row: &Row) {
        self.rows.entry(key).or_default().merge(row);
    }

    /// Whether a ledger with these rows can have one of this key: a received row may have any.
    pub fn has_room_for(&self, key: RowKey) -> bool {
        self.rows.len() < ROWS || self.rows.contains_key(&key)
    }

    /// Merges another account into this one.
    pub fn merge(&mut self, other: &Self) {
        for (key, row) in &other.rows {
            self.add(*key, row);
        }
        self.taken = self.taken.wrapping_add(other.taken);
        self.alive = self.alive.wrapping_add(other.alive);
    }

    pub(super) fn sum<'a>(accounts: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        accounts.for_each(|account| sum.merge(account));
        sum
    }

    /// The rows, by key.
    pub fn rows(&self) -> impl Iterator<Item = (RowKey, &Row)> {
        self.rows.iter().map(|(key, row)| (*key, row))
    }

    /// The sum over all rows; its `ticks` are the time outside the guest.
    pub fn total(&self) -> Row {
        total(self.rows.values())
    }

    /// Exits taken but not counted: see [`Ledger::difference`].
    pub fn difference(&self) -> i64 {
        self.taken.wrapping_sub(self.total().count) as i64
    }

    /// The reasons and their sub-reasons, most expensive first. Rows without an exit are omitted.
    pub fn reasons(&self, catalogue: &'static Catalogue) -> Vec<ReasonLine> {
        let mut by_reason: BTreeMap<Option<&'static str>, Vec<SubLine>> = BTreeMap::new();
        for (key, row) in self.rows.iter().filter(|(_, row)| !row.is_empty()) {
            let (reason, name) = match catalogue.name(*key) {
                Some(name) => (Some(name.reason_name), name.sub.to_string()),
                // A reason unknown to this program (the sender is newer): it is counted all the same.
                None => (None, format!("{:#x}", key.encode())),
            };
            by_reason.entry(reason).or_default().push(SubLine { key: *key, name, row: *row });
        }
        let mut lines: Vec<_> = by_reason
            .into_iter()
            .map(|(reason, mut subs)| {
                subs.sort_by_key(|sub| (weight(&sub.row), sub.key));
                let row = total(subs.iter().map(|sub| &sub.row));
                ReasonLine { name: reason.unwrap_or("?"), row, subs }
            })
            .collect();
        lines.sort_by_key(|line| (weight(&line.row), line.name));
        lines
    }
}

/// A reason and its cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReasonLine {
    /// The reason's name.
    pub name: &'static str,
    /// The sum over its rows.
    pub row: Row,
    /// The rows, most expensive first.
    pub subs: Vec<SubLine>,
}

/// A sub-reason and its cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubLine {
    /// The row's key.
    pub key: RowKey,
    /// The sub-reason's name.
    pub name: String,
    /// The counters.
    pub row: Row,
}

/// Sort key of rows: most expensive first.
fn weight(row: &Row) -> impl Ord + use<> {
    (Reverse(row.ticks), Reverse(row.count))
}

pub(super) fn total<'a>(rows: impl Iterator<Item = &'a Row>) -> Row {
    rows.fold(Row::EMPTY, |mut sum, row| {
        sum.merge(row);
        sum
    })
}
