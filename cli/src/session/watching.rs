//! Samples that the session itself requests: for the VMs' budgets, and of VMs that are about to be destroyed.

use std::time::Instant;

use stile_wire::Action;

use super::Session;
use super::budgets::WATCHER;
use super::leaving::{KEEPER, Leaving};
use super::outcome::Fate;
use crate::control::sample::Sample;

impl Session<'_> {
    /// Time of the next sample. None before a VM runs: until then, firmware may read the serial line.
    pub(super) fn budgets_due(&self, now: Instant) -> Option<Instant> {
        self.budgets.due(now).filter(|_| self.lines[0].story.fates.contains(&Fate::Running))
    }

    /// Asks for a sample if one is due.
    pub(super) fn watch_budgets(&mut self, now: Instant) {
        if self.budgets_due(now).is_some_and(|due| now >= due) {
            self.budgets.note_request(now);
            let names = self.vm_names(0);
            let step = self.sampler.ask(WATCHER, now, &names);
            self.sampled(step);
        }
    }

    /// Compares a sample with the budgets, and reports limits that are exceeded or kept again.
    pub(super) fn check_budgets(&mut self, sample: &Sample) {
        for usage in self.budgets.check(sample) {
            self.view.note(&usage.to_string());
            self.logs.budget(&usage);
        }
    }

    /// Whether the final account needs the ledger of a VM that will be destroyed. Only a VM that is off can be.
    pub(super) fn keeps_accounts(&self, line: usize, vm: u8) -> bool {
        let is_off = self.lines[line].story.fates.get(usize::from(vm)).is_some_and(|fate| fate.is_over());
        self.accounts && line == 0 && is_off
    }

    /// Requests a sample of VMs that will be destroyed, unless one is in progress: that may have begun before they were off.
    pub(super) fn sample_leaving(&mut self) {
        if self.leaving.is_empty() || self.sampler.retry_at().is_some() {
            return;
        }
        self.leaving.iter_mut().for_each(|leaving| leaving.is_sampled = true);
        let names = self.vm_names(0);
        let step = self.sampler.ask(KEEPER, Instant::now(), &names);
        self.sampled(step);
    }

    /// Handles a complete sample: destroys the VMs whose ledgers it has.
    pub(super) fn let_leave(&mut self) {
        let (ready, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving).into_iter().partition(|leaving| leaving.is_sampled);
        self.leaving = rest;
        for Leaving { client, name, vm, .. } in ready {
            self.lines[0].exits.keep(vm, &name, self.sampler.report());
            self.pass_on_control(client, &name, (0, vm), Action::Destroy);
        }
        self.sample_leaving();
    }
}
