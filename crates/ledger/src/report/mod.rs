//! Ledgers as they are shown: rows of many vCPUs, added up and sorted.
//!
//! An [`Account`] collects rows by what they stand for, so it doesn't matter whether they come from
//! a [`Ledger`] at hand or over an operator's channel, nor from how many vCPUs. A
//! [`Report`] keeps one for each vCPU. [`Account::reasons`] is the sorted form, and [`Table`] its
//! text.

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
    /// A report on no vCPU.
    pub fn new() -> Self {
        Self::default()
    }

    /// The account of one vCPU, to add to; an empty one is made if there is none.
    pub fn account_mut(&mut self, vm: u8, vcpu: u8) -> &mut Account {
        self.accounts.entry((vm, vcpu)).or_default()
    }

    /// The account of each vCPU, in order: VM, vCPU, account.
    pub fn vcpus(&self) -> impl Iterator<Item = (u8, u8, &Account)> {
        self.accounts.iter().map(|(&(vm, vcpu), account)| (vm, vcpu, account))
    }

    /// The VMs that there are accounts of, in order.
    pub fn vms(&self) -> Vec<u8> {
        let mut vms: Vec<u8> = self.accounts.keys().map(|(vm, _)| *vm).collect();
        vms.dedup();
        vms
    }

    /// The accounts of a VM's vCPUs, added up.
    pub fn vm(&self, vm: u8) -> Account {
        Account::sum(self.accounts.range((vm, 0)..=(vm, u8::MAX)).map(|(_, account)| account))
    }

    /// All accounts, added up.
    pub fn machine(&self) -> Account {
        Account::sum(self.accounts.values())
    }
}

/// What has been counted, by row: for one vCPU or several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    rows: BTreeMap<RowKey, Row>,
    /// Exits taken, as the vector counted them.
    pub taken: u64,
    /// For how long the vCPUs have been powered on, in ticks; 0 if that isn't known.
    pub alive: u64,
}

impl Account {
    /// An account of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a ledger has counted so far.
    pub fn of(ledger: &Ledger) -> Self {
        let mut account = Self { taken: ledger.taken, ..Self::default() };
        for entry in ledger.entries() {
            account.add(entry.key, &entry.row);
        }
        account
    }

    /// Adds a row to what is there for its key.
    pub fn add(&mut self, key: RowKey, row: &Row) {
        self.rows.entry(key).or_default().merge(row);
    }

    /// Adds another account to this one.
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

    /// All rows added up; its `ticks` are the time outside the guest.
    pub fn total(&self) -> Row {
        total(self.rows.values())
    }

    /// Exits taken but not counted: see [`Ledger::difference`].
    pub fn difference(&self) -> i64 {
        self.taken.wrapping_sub(self.total().count) as i64
    }

    /// The reasons and their sub-reasons, what took the longest first. Rows without an exit are
    /// left out.
    pub fn reasons(&self, catalogue: &'static Catalogue) -> Vec<ReasonLine> {
        let mut by_reason: BTreeMap<Option<&'static str>, Vec<SubLine>> = BTreeMap::new();
        for (key, row) in self.rows.iter().filter(|(_, row)| !row.is_empty()) {
            let (reason, name) = match catalogue.name(*key) {
                Some(name) => (Some(name.reason_name), name.sub.to_string()),
                // Whoever made the row knows more reasons than this program: still, it counts.
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

    /// The account as a text, with the columns of `perf kvm stat`. `frequency` is the counter's, in
    /// Hz; 0 shows times in ticks.
    pub fn table(&self, catalogue: &'static Catalogue, frequency: u64) -> Table<'_> {
        Table { account: self, catalogue, frequency, folded: false }
    }
}

/// A reason, and what its exits cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReasonLine {
    /// The reason's name.
    pub name: &'static str,
    /// All its rows added up.
    pub row: Row,
    /// The rows, by their time.
    pub subs: Vec<SubLine>,
}

/// A sub-reason, and what its exits cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubLine {
    /// What the row stands for.
    pub key: RowKey,
    /// The sub-reason's name.
    pub name: String,
    /// What has been counted.
    pub row: Row,
}

/// Sorts rows: those that cost the most come first.
fn weight(row: &Row) -> impl Ord + use<> {
    (Reverse(row.ticks), Reverse(row.count))
}

fn total<'a>(rows: impl Iterator<Item = &'a Row>) -> Row {
    rows.fold(Row::EMPTY, |mut sum, row| {
        sum.merge(row);
        sum
    })
}
