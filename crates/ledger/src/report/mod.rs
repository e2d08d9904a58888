//! Presentation of ledgers: rows of many vCPUs, merged and sorted.
//!
//! An [`Account`] collects rows by key, whether they come from a local [`Ledger`] or over an operator's
//! channel, and from any number of vCPUs. A [`Report`] has one per vCPU. [`Account::reasons`] is the sorted
//! form, and [`Table`] its text.

mod table;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;

pub use table::Table;

use crate::{Catalogue, Ledger, Row, RowKey};

/// The accounts of all vCPUs of a machine.
#[derive(Clone, Debug, Default)]
pub struct Report {
    accounts: BTreeMap<(u8, u8), Account>,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// The account of one vCPU, created empty if there is none.
    pub fn account_mut(&mut self, vm: u8, vcpu: u8) -> &mut Account {
        self.accounts.entry((vm, vcpu)).or_default()
    }

    /// The vCPUs' accounts, sorted: VM, vCPU, account.
    pub fn vcpus(&self) -> impl Iterator<Item = (u8, u8, &Account)> {
        self.accounts.iter().map(|(&(vm, vcpu), account)| (vm, vcpu, account))
    }

    /// The VMs with an account, sorted.
    pub fn vms(&self) -> Vec<u8> {
        let mut vms: Vec<u8> = self.accounts.keys().map(|(vm, _)| *vm).collect();
        vms.dedup();
        vms
    }

    /// The merged accounts of a VM's vCPUs.
    pub fn vm(&self, vm: u8) -> Account {
        Account::sum(self.accounts.range((vm, 0)..=(vm, u8::MAX)).map(|(_, account)| account))
    }

    /// All accounts, merged.
    pub fn machine(&self) -> Account {
        Account::sum(self.accounts.values())
    }
}

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

    /// Merges another account into this one.
    pub fn merge(&mut self, other: &Self) {
        for (key, row) in &other.rows {
            self.add(*key, row);
        }
        self.taken = self.taken.wrapping_add(other.taken);
        self.alive = self.alive.wrapping_add(other.alive);
    }

    fn sum<'a>(accounts: impl Iterator<Item = &'a Self>) -> Self {
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

    /// The account as text, with the columns of `perf kvm stat`. `frequency` is the counter's, in Hz; with 0,
    /// times are in ticks.
    pub fn table(&self, catalogue: &'static Catalogue, frequency: u64) -> Table<'_> {
        Table { account: self, catalogue, frequency, folded: false }
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

fn total<'a>(rows: impl Iterator<Item = &'a Row>) -> Row {
    rows.fold(Row::EMPTY, |mut sum, row| {
        sum.merge(row);
        sum
    })
}
