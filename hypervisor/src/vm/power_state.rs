//! Whether a VM is on, off, or on the way: what [`super::power`] changes.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use stile_sched::lock::TicketLock;

use super::end::End;

/// Where a VM is between on and off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// All its vCPUs are off.
    Off,
    /// Its vCPUs run, or may.
    On,
    /// Its vCPUs are being parked.
    Pausing,
    /// All are parked, or still are, and the operator is told that it is paused, or runs on: no other request is served meanwhile, so that
    /// the operator is told of states in their order.
    Telling,
    /// Since this time, in ticks of the counter.
    Paused(u64),
    /// Its vCPUs are being stopped.
    Ending(End),
    /// All its vCPUs are off, and the operator is told so.
    Ended,
    /// It was just made, or is being reset; and how it was asked to end meanwhile.
    Starting(Option<End>),
    /// It is being destroyed: whether its first vCPU was started, which clears the memory, and is off once that is done.
    Destroying(bool),
    /// Nothing finds it any more.
    Gone,
}

/// [`Power::change`]: it is ending.
pub const ENDING: u8 = 1;
/// [`Power::change`]: it is being paused.
pub const PAUSING: u8 = 2;

/// A VM's power.
pub struct Power {
    pub(super) state: TicketLock<State>,
    /// Whether [`settle`](super::power::settle) has something to do, to be asked without the lock: 0, [`ENDING`] or [`PAUSING`].
    pub(super) change: AtomicU8,
    /// Its vCPUs are parked, or being parked: one that starts is parked, too.
    pub(super) held: AtomicBool,
    /// It did not end by its own power-off.
    pub(super) failed: AtomicBool,
    /// Its first vCPU has an errand: memory is not yet in the state after a reset.
    pub(super) errand: AtomicBool,
    /// When it was started last, in ticks of the counter.
    pub(super) started: AtomicU64,
    /// How often its guest reset it. Written with the state locked.
    pub(super) resets: AtomicU32,
}

impl Power {
    /// Made, and about to be [started](super::power::start): the machine does not end meanwhile. `errand`: the first start has an errand, too.
    pub fn new(errand: bool) -> Power {
        Power {
            state: TicketLock::new(State::Starting(None)),
            change: AtomicU8::new(0),
            held: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            errand: AtomicBool::new(errand),
            started: AtomicU64::new(0),
            resets: AtomicU32::new(0),
        }
    }

    /// Whether [`settle`](super::power::settle) has something to do.
    #[inline(always)]
    pub fn is_changing(&self) -> bool {
        self.change.load(Ordering::Acquire) != 0
    }

    /// Whether the VM is ending.
    pub fn is_ending(&self) -> bool {
        self.change.load(Ordering::Acquire) == ENDING
    }

    /// Whether the VM is paused, or being paused.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether the VM's vCPU that is to be entered has an errand first.
    #[inline(always)]
    pub fn has_errand(&self) -> bool {
        self.errand.load(Ordering::Relaxed)
    }

    /// Does something that must not happen while the VM ends or starts anew, unless it does. (Not every architecture has such a thing.)
    #[allow(dead_code)]
    pub fn if_on(&self, act: impl FnOnce()) {
        let state = self.state.lock();
        if matches!(*state, State::On | State::Pausing | State::Telling | State::Paused(_)) {
            act();
        }
    }
}
