//! A VM, as the scheduler knows it.

use crate::cap::Cap;

/// Default weight.
const DEFAULT_WEIGHT: u16 = 100;

/// The scheduler's state of a VM.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[derive(Clone, Copy)]
pub(crate) struct Vm {
    /// At least 1; 0 if none of its vCPUs was configured since Stile's start.
    pub(crate) weight: u16,
    /// One more than the highest number of a configured vCPU.
    pub(crate) vcpus: u16,
    /// Number of waiting and running vCPUs on all CPUs.
    pub(crate) active: u16,
    /// The integral of `active` over time, up to `since`.
    pub(crate) clock: u64,
    pub(crate) since: u64,
    pub(crate) cap: Option<Cap>,
}

impl Vm {
    /// Before its first vCPU is configured. All zero, as the whole scheduler is then: a static takes no room in an image.
    pub(crate) const UNUSED: Self = Self { weight: 0, vcpus: 0, active: 0, clock: 0, since: 0, cap: None };
    pub(crate) const NEW: Self = Self { weight: DEFAULT_WEIGHT, vcpus: 0, active: 0, clock: 0, since: 0, cap: None };

    pub(crate) fn clock_at(&self, now: u64) -> u64 {
        self.clock.wrapping_add(now.saturating_sub(self.since).wrapping_mul(u64::from(self.active)))
    }

    /// Counts a vCPU that becomes ready.
    pub(crate) fn activate(&mut self, now: u64) {
        self.advance(now);
        self.active += 1;
    }

    /// Counts a vCPU that is no longer ready.
    pub(crate) fn deactivate(&mut self, now: u64) {
        self.advance(now);
        self.active -= 1;
    }

    fn advance(&mut self, now: u64) {
        self.clock = self.clock_at(now);
        self.since = self.since.max(now);
    }
}
