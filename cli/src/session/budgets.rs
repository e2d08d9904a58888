//! The budgets of a machine's VMs while it runs.

use std::time::{Duration, Instant};

use super::watch::Watch;
use crate::budget::{Budget, Usage};
use crate::control::sample::Sample;
use crate::control::server::ClientId;
use crate::guest::Guest;

/// The session among the sampler's clients; others are counted from 0.
pub const WATCHER: ClientId = ClientId::MAX;

/// Time between samples. Each makes every vCPU exit.
const INTERVAL: Duration = Duration::from_secs(5);

/// The budgets of the machine's VMs.
#[derive(Debug, Default)]
pub struct Budgets {
    /// Budgets of the VMs that have one.
    of: Vec<(String, Budget)>,
    watch: Watch,
    /// Time of the last request of a sample.
    last_request: Option<Instant>,
}

impl Budgets {
    /// The budgets of these VMs.
    pub fn new(guests: &[Guest]) -> Self {
        let mut budgets = Self::default();
        guests.iter().for_each(|guest| budgets.add(guest));
        budgets
    }

    /// Adds a VM.
    pub fn add(&mut self, guest: &Guest) {
        if !guest.budget.is_empty() {
            self.of.push((guest.name.clone(), guest.budget));
        }
    }

    /// The budget of a VM.
    pub fn of(&self, vm: &str) -> Budget {
        self.of.iter().find(|(name, _)| name == vm).map(|(_, budget)| *budget).unwrap_or_default()
    }

    /// Removes a destroyed VM.
    pub fn remove(&mut self, vm: &str) {
        self.of.retain(|(name, _)| name != vm);
    }

    /// Time of the next sample; `None` without a budget.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        (!self.of.is_empty()).then(|| self.last_request.map_or(now, |last| last + INTERVAL))
    }

    /// Records the request of a sample.
    pub fn note_request(&mut self, now: Instant) {
        self.last_request = Some(now);
    }

    /// Compares a sample with the budgets. Returns the limits whose state changed: exceeded now, or kept again.
    pub fn check(&mut self, sample: &Sample) -> Vec<Usage> {
        self.watch.take(sample, &self.of)
    }

    /// Returns the recent usage of each VM's budget.
    pub fn usage(&self) -> Vec<Usage> {
        let mut usage = self.watch.usage();
        usage.retain(|usage| self.of.iter().any(|(name, _)| *name == usage.vm));
        usage
    }
}
