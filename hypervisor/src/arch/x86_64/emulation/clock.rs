//! The guest's real-time clock (ports 0x70 and 0x71), with the interface that [`crate::device`] expects.

use stile_device::rtc::{Rtc, UPDATE_US};
use stile_snapshot::pc::Rtc as Saved;

use crate::arch::x86_64::host::timer;

/// Whether the current second of [`crate::wall_clock::seconds`] ends soon.
fn second_ends() -> bool {
    let second = timer::frequency().max(1);
    second - timer::now() % second <= second * UPDATE_US / 1_000_000
}

/// A clock that shows the caller's time. Its alarm is not implemented: it wakes no guest.
pub struct Clock(Rtc);

impl Clock {
    /// Returns the clock in its reset state.
    pub fn new(_seconds: u32, _now: u64) -> Clock {
        Clock(Rtc::new())
    }

    /// Reads port 0x70 + `offset` for the guest.
    #[inline(never)]
    pub fn read(&self, offset: u32, now: u64) -> u32 {
        self.0.read(offset as u16, now, second_ends()).into()
    }

    /// Writes port 0x70 + `offset` for the guest. There is no interrupt line.
    pub fn write(&mut self, offset: u32, value: u32, now: u64) -> Option<bool> {
        self.0.write(offset as u16, value as u8, now);
        None
    }

    /// Exports the state.
    pub fn save(&self) -> Saved {
        self.0.save()
    }

    /// Imports a state at `now` that was exported at another time of day.
    pub fn restore(&mut self, from: &Saved, now: u64, exported: u64) {
        self.0.restore(from, now, exported);
    }

    /// Expiry of the alarm: never.
    pub fn deadline(&self) -> Option<u64> {
        None
    }

    /// As [`Clock::deadline`].
    pub fn expire(&mut self, _now: u64) -> Option<bool> {
        None
    }
}
