//! Power state of a VM, which [`super::power`] changes.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use stile_lock::TicketLock;

use super::end::End;

/// Power state of a VM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// All its vCPUs are off.
    Off,
    /// Its vCPUs run, or may run.
    On,
    /// Its vCPUs are being parked.
    Pausing,
    /// A pause or resumption is being reported to the operator. No other request is served in this state, so that
    /// reports are in order.
    Reporting,
    /// All vCPUs are put, since this time in ticks of the counter.
    Paused(u64),
    /// A snapshot is being restored into it: no vCPU has run. Its time continues at this time in ticks of the counter.
    Restoring(u64),
    /// Its vCPUs are being stopped.
    Ending(End),
    /// All its vCPUs are off; its end is being reported to the operator.
    Ended,
    /// It was just created or is being reset. Holds an end that was requested since.
    Starting(Option<End>),
    /// It is being destroyed. Holds whether its first vCPU was started, which clears the memory and is off once that
    /// is complete.
    Destroying(bool),
    /// It was removed from lookups.
    Gone,
}

/// [`Power::change`]: the VM is ending.
pub const ENDING: u8 = 1;
/// [`Power::change`]: the VM is being paused.
pub const PAUSING: u8 = 2;

/// Power control of a VM.
pub struct Power {
    pub(super) state: TicketLock<State>,
    /// Nonzero if [`settle`](super::power::settle) has work, for a test without the lock: [`ENDING`] or [`PAUSING`].
    pub(super) change: AtomicU8,
    /// A pause begins once the errand is complete, before the guest runs. Accessed with the state locked.
    pub(super) pause_next: AtomicBool,
    /// Its vCPUs are parked or being parked: one that starts is parked as well.
    pub(super) held: AtomicBool,
    /// It ended other than by its guest's power-off or success status.
    pub(super) failed: AtomicBool,
    /// Its first vCPU has an errand: the VM is not yet in its reset state.
    pub(super) errand: AtomicBool,
    /// The next vCPU that the errand resets; the first one is reset with the VM. Written by the CPU that starts the VM,
    /// and then by the one that runs its errand.
    pub(super) next_reset: AtomicUsize,
    /// The errand frees memory of the previous life ([`VmPart::tear_down`](crate::arch::contract::VmPart::tear_down)).
    pub(super) tear_down: AtomicBool,
    /// The errand initializes RAM.
    pub(super) reload: AtomicBool,
    /// Time of the last start, in ticks of the counter.
    pub(super) started: AtomicU64,
    /// Time of day of the snapshot that is being restored, in nanoseconds since 1970; `u64::MAX` without one. Untrusted.
    pub(super) saved_at: AtomicU64,
    /// Start of the pause in which the first part of the last snapshot was saved, in ticks of the counter; 0 without one.
    /// Accessed with the state locked.
    pub(super) saved_pause: AtomicU64,
    /// Number of vCPUs that are prepared for that snapshot. Accessed with the state locked.
    pub(super) prepared: AtomicUsize,
    /// Its clocks run although it is paused: it was restored, and has not run yet.
    pub(super) clocks_run: AtomicBool,
    /// Number of resets, by its guest and by the operator. Written with the state locked.
    pub(super) resets: AtomicU32,
    /// Number of resets by its guest, which `on_reset` limits. Written with the state locked.
    pub(super) own_resets: AtomicU32,
}

impl Power {
    /// A VM that was created and is about to be [started](super::power::start); until then the machine does not end.
    /// `reload`: whether the first start initializes RAM.
    pub fn new(reload: bool) -> Power {
        Power {
            state: TicketLock::new(State::Starting(None)),
            change: AtomicU8::new(0),
            pause_next: AtomicBool::new(false),
            held: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            errand: AtomicBool::new(false),
            next_reset: AtomicUsize::new(0),
            tear_down: AtomicBool::new(false),
            reload: AtomicBool::new(reload),
            started: AtomicU64::new(0),
            saved_at: AtomicU64::new(u64::MAX),
            saved_pause: AtomicU64::new(0),
            prepared: AtomicUsize::new(0),
            clocks_run: AtomicBool::new(false),
            resets: AtomicU32::new(0),
            own_resets: AtomicU32::new(0),
        }
    }

    /// Sets the time of day of the snapshot that is being restored, in nanoseconds since 1970: untrusted input.
    pub fn set_saved_at(&self, time: u64) {
        self.saved_at.store(time, Ordering::Relaxed);
    }

    /// Forgets the snapshot at a reset, which restarts the VM's time.
    pub(super) fn forget_snapshot(&self) {
        self.saved_at.store(u64::MAX, Ordering::Relaxed);
        self.clocks_run.store(false, Ordering::Relaxed);
    }

    /// Whether [`settle`](super::power::settle) has work.
    #[inline(always)]
    pub fn is_changing(&self) -> bool {
        self.change.load(Ordering::Acquire) != 0
    }

    /// Whether the VM is ending.
    pub fn is_ending(&self) -> bool {
        self.change.load(Ordering::Acquire) == ENDING
    }

    /// Whether all vCPUs of the VM are off.
    #[allow(dead_code, reason = "not every architecture has served devices")]
    pub fn is_off(&self) -> bool {
        *self.state.lock() == State::Off
    }

    /// Whether the VM is paused, or being paused.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether the VM's first vCPU has an errand to run before entry.
    #[inline(always)]
    pub fn has_errand(&self) -> bool {
        self.errand.load(Ordering::Relaxed)
    }

    /// Calls `act` with the state locked, which excludes a concurrent end or restart, if the VM is on: it runs, or can after a
    /// pause.
    #[allow(dead_code, reason = "not every architecture needs it")]
    pub fn if_on(&self, act: impl FnOnce()) {
        let state = self.state.lock();
        if matches!(*state, State::On | State::Pausing | State::Reporting | State::Paused(_) | State::Restoring(_)) {
            act();
        }
    }
}
