//! A VM's real-time clock: the architecture's model behind a lock, with its alarm.

use stile_sched::lock::TicketLock;

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
    /// The clock after reset.
    pub fn new() -> Clock {
        Clock { model: TicketLock::new(model()) }
    }

    /// Resets it, which ends its alarm.
    pub fn reset(&self) {
        *self.model.lock() = model();
    }

    /// The time of its alarm may have come. `set_line` moves [`Line::Clock`](super::Line::Clock), `set_alarm` sets when it comes next: in seconds of
    /// the wall clock.
    pub fn expire(&self, set_line: impl FnOnce(bool), set_alarm: impl FnOnce(Option<u64>)) {
        let mut model = self.model.lock();
        if let Some(level) = model.expire(wall_clock::seconds()) {
            set_line(level);
        }
        set_alarm(model.deadline());
    }

    /// The guest reads the register at `offset`.
    pub fn read(&self, offset: u32) -> u32 {
        self.model.lock().read(offset, wall_clock::seconds())
    }

    /// The guest writes the register at `offset`. `set_line` and `set_alarm` as for [`Clock::expire`].
    pub fn write(&self, offset: u32, value: u32, set_line: impl FnOnce(bool), set_alarm: impl FnOnce(Option<u64>)) {
        let mut model = self.model.lock();
        if let Some(level) = model.write(offset, value, wall_clock::seconds()) {
            set_line(level);
        }
        set_alarm(model.deadline());
    }
}
