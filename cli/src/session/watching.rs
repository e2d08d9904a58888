//! Samples for the VMs' budgets at intervals, and news for the user.

use std::time::Instant;

use super::Session;
use super::budgets::WATCHER;
use super::outcome::Fate;
use crate::control::sample::Sample;

impl Session<'_> {
    /// When the next sample is due. Not before a VM runs: firmware may read the serial line until then.
    pub(super) fn budgets_due(&self, now: Instant) -> Option<Instant> {
        self.budgets.due(now).filter(|_| self.lines[0].story.fates.contains(&Fate::Running))
    }

    /// Asks for a sample if one is due.
    pub(super) fn watch_budgets(&mut self, now: Instant) {
        if self.budgets_due(now).is_some_and(|due| now >= due) {
            self.budgets.ask(now);
            let names = self.vm_names(0);
            let step = self.sampler.ask(WATCHER, now, &names);
            self.sampled(step);
        }
    }

    /// Holds a sample against the budgets.
    pub(super) fn hold(&mut self, sample: &Sample) {
        for usage in self.budgets.hold(sample) {
            self.view.note(&usage.to_string());
            self.logs.budget(&usage);
        }
    }
}
