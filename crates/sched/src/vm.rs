//! A VM, as the scheduler knows it.

use core::sync::atomic::{AtomicU16, Ordering};

use stile_lock::TicketLock;

use crate::cap::Cap;

/// Default weight.
pub(crate) const DEFAULT_WEIGHT: u16 = 100;

/// The scheduler's state of a VM. Only the CPUs that its vCPUs use write to it.
#[repr(align(128))]
pub(crate) struct Vm {
    /// At least 1; 0 if none of its vCPUs was configured since Stile's start. Written with all locks held, or before the
    /// first of its vCPUs exists.
    pub(crate) weight: AtomicU16,
    /// One more than the highest number of a configured vCPU. Written with the lock of a CPU held.
    pub(crate) vcpus: AtomicU16,
    /// Number of waiting and running vCPUs on all CPUs. Written with the lock held.
    active: AtomicU16,
    /// State that the VM's CPUs share. Taken for a few instructions, after the locks of CPUs.
    account: TicketLock<Account>,
}

/// A VM's clock and cap.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[derive(Clone, Copy)]
pub(crate) struct Account {
    /// The integral of `active` over time, up to `since`.
    clock: u64,
    since: u64,
    cap: Option<Cap>,
}

impl Account {
    const NEW: Self = Self { clock: 0, since: 0, cap: None };

    fn clock_at(&self, active: u16, now: u64) -> u64 {
        self.clock.wrapping_add(now.saturating_sub(self.since).wrapping_mul(u64::from(active)))
    }

    fn advance(&mut self, active: u16, now: u64) {
        self.clock = self.clock_at(active, now);
        self.since = self.since.max(now);
    }
}

impl Vm {
    /// Before its first vCPU is configured. All zero, as the whole scheduler is then: a static takes no room in an image.
    pub(crate) const fn unused() -> Self {
        Self { weight: AtomicU16::new(0), vcpus: AtomicU16::new(0), active: AtomicU16::new(0), account: TicketLock::new(Account::NEW) }
    }

    /// Forgets the VM.
    pub(crate) fn reset(&self) {
        self.weight.store(DEFAULT_WEIGHT, Ordering::Relaxed);
        self.vcpus.store(0, Ordering::Relaxed);
        let mut account = self.account.lock();
        self.active.store(0, Ordering::Relaxed);
        *account = Account::NEW;
    }

    #[inline]
    pub(crate) fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn active(&self) -> u16 {
        self.active.load(Ordering::Relaxed)
    }

    /// The integral of the number of ready vCPUs over time.
    pub(crate) fn clock_at(&self, now: u64) -> u64 {
        self.account.lock().clock_at(self.active(), now)
    }

    /// Counts a vCPU that becomes ready.
    pub(crate) fn activate(&self, now: u64) {
        let mut account = self.account.lock();
        account.advance(self.active(), now);
        self.active.store(self.active() + 1, Ordering::Relaxed);
    }

    /// Counts a vCPU that is no longer ready.
    pub(crate) fn deactivate(&self, now: u64) {
        let mut account = self.account.lock();
        account.advance(self.active(), now);
        self.active.store(self.active() - 1, Ordering::Relaxed);
    }

    /// Counts a vCPU as ready between two times.
    pub(crate) fn count_between(&self, from: u64, until: u64) {
        let mut account = self.account.lock();
        account.advance(self.active(), from);
        account.advance(self.active() + 1, until);
    }

    /// Sets the number of waiting and running vCPUs, of which there are none or none were counted.
    pub(crate) fn recount(&self, active: u16) {
        let _account = self.account.lock();
        self.active.store(active, Ordering::Relaxed);
    }

    /// Sets the cap, while none of the VM's vCPUs runs or waits.
    pub(crate) fn set_cap(&self, cap: Option<Cap>) {
        self.account.lock().cap = cap;
    }

    /// Does something with the cap, if the VM has one.
    pub(crate) fn with_cap<R>(&self, work: impl FnOnce(&mut Cap) -> R) -> Option<R> {
        self.account.lock().cap.as_mut().map(work)
    }

    /// Copies the account, for tests to compare.
    #[cfg(test)]
    pub(crate) fn account(&self) -> Account {
        *self.account.lock()
    }
}
