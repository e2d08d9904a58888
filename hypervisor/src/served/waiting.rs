//! The alarm for clients that wait for their servers: each second for a part of all VMs, until no load waits.

use stile_board::MAX_VMS;
use stile_lock::TicketLock;

use crate::arch::Arch;
use crate::arch::contract::Counter;
use crate::device::alarm;

/// Number of parts of the VMs, of which an alarm looks at one: its work is bounded by the devices of [`PART`] VMs.
const PARTS: usize = 8;
pub const PART: usize = MAX_VMS.div_ceil(PARTS);

static WATCH: TicketLock<Watch> = TicketLock::new(Watch { is_on: false, next: 0, waits: false });

/// Progress of the alarm.
struct Watch {
    /// The alarm is set, or rings.
    is_on: bool,
    /// The part that is looked at next.
    next: usize,
    /// A load began to wait, or was found waiting, since the first part was looked at last.
    waits: bool,
}

/// A load begins to wait.
#[cold]
pub fn begin() {
    let mut watch = WATCH.lock();
    watch.waits = true;
    if !core::mem::replace(&mut watch.is_on, true) {
        alarm::set_patience(Arch::now() + Arch::frequency());
    }
}

/// Returns the part that is to be looked at.
pub fn part() -> usize {
    let mut watch = WATCH.lock();
    watch.waits &= watch.next != 0;
    watch.next
}

/// Ends the look at a part, at the time of the alarm. `waits`: a load waits there.
pub fn end_part(waits: bool, now: u64) {
    let mut watch = WATCH.lock();
    watch.waits |= waits;
    watch.next = (watch.next + 1) % PARTS;
    watch.is_on = watch.waits || watch.next != 0;
    if watch.is_on {
        alarm::set_patience(now + Arch::frequency());
    }
}
