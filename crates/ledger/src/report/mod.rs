//! Presentation of ledgers: rows of many vCPUs, merged and sorted.
//!
//! An [`Account`] collects rows by key, from a [`Ledger`] in memory or from the operator's serial line, of any
//! number of vCPUs. A [`Report`] has one per vCPU. [`Account::reasons`] is the sorted form, and [`Table`] its text.

mod account;
mod table;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use account::{Account, ReasonLine, SubLine};
pub use table::Table;

/// The accounts of all vCPUs of a machine.
#[derive(Clone, Debug, Default)]
pub struct Report {
    accounts: BTreeMap<(u8, u8), Account>,
}

impl Report {
    /// Creates an empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the account of one vCPU, created empty if it does not exist.
    pub fn account_mut(&mut self, vm: u8, vcpu: u8) -> &mut Account {
        self.accounts.entry((vm, vcpu)).or_default()
    }

    /// Iterates over (VM, vCPU, account), sorted by VM and vCPU.
    pub fn vcpus(&self) -> impl Iterator<Item = (u8, u8, &Account)> {
        self.accounts.iter().map(|(&(vm, vcpu), account)| (vm, vcpu, account))
    }

    /// Returns the numbers of the VMs that have an account, in ascending order.
    pub fn vms(&self) -> Vec<u8> {
        let mut vms: Vec<u8> = self.accounts.keys().map(|(vm, _)| *vm).collect();
        vms.dedup();
        vms
    }

    /// Merges the accounts of a VM's vCPUs; empty if it has none.
    pub fn vm(&self, vm: u8) -> Account {
        Account::sum(self.accounts.range((vm, 0)..=(vm, u8::MAX)).map(|(_, account)| account))
    }

    /// Merges all accounts.
    pub fn machine(&self) -> Account {
        Account::sum(self.accounts.values())
    }
}
