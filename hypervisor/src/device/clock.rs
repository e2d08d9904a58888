//! A VM's real-time clock: the architecture's model behind a lock, with its alarm.

use stile_lock::TicketLock;

use crate::arch::models::Clock as Model;
use crate::wall_clock;

/// The clock.
pub struct Clock {
    model: TicketLock<Model>,
}

fn model() -> Model {
    Model::new(wall_clock::seconds() as u32, wall_clock::seconds())
}

impl Clock {
    /// Returns the clock in its reset state.
    pub fn new() -> Clock {
        Clock { model: TicketLock::new(model()) }
    }

    /// Resets the clock and cancels its alarm.
    pub fn reset(&self) {
        *self.model.lock() = model();
    }

    /// Checks whether the alarm has expired. `set_line` sets the level of [`Line::Clock`](super::Line::Clock),
    /// `set_alarm` the next expiry, in seconds of the wall clock.
    pub fn expire(&self, set_line: impl FnOnce(bool), set_alarm: impl FnOnce(Option<u64>)) {
        let mut model = self.model.lock();
        if let Some(level) = model.expire(wall_clock::seconds()) {
            set_line(level);
        }
        set_alarm(model.deadline());
    }

    /// Calls `act` with the model and the time of day. Does not set the interrupt line.
    #[allow(dead_code, reason = "not every architecture has snapshots")]
    pub fn inspect<T>(&self, act: impl FnOnce(&mut Model, u64) -> T) -> T {
        act(&mut self.model.lock(), wall_clock::seconds())
    }

    /// Reads the register at `offset` for the guest.
    pub fn read(&self, offset: u32) -> u32 {
        self.model.lock().read(offset, wall_clock::seconds())
    }

    /// Writes the register at `offset` for the guest. `set_line` and `set_alarm` as for [`Clock::expire`].
    pub fn write(&self, offset: u32, value: u32, set_line: impl FnOnce(bool), set_alarm: impl FnOnce(Option<u64>)) {
        let mut model = self.model.lock();
        if let Some(level) = model.write(offset, value, wall_clock::seconds()) {
            set_line(level);
        }
        set_alarm(model.deadline());
    }
}
