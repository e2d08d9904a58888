//! Stile's work for transfers of VMs, by the machine's counter.

use crate::control::protocol::{Copied, Reply, Work};
use crate::emulator::Counting;

/// Measures Stile's work for a request.
#[derive(Clone, Copy, Debug)]
pub struct WorkMeter {
    counting: Counting,
    /// Frequency of the machine's counter; 0 until it is known.
    hz: u64,
    ticks: u64,
}

impl WorkMeter {
    /// A meter at zero.
    pub const fn new(counting: Counting) -> Self {
        Self { counting, hz: 0, ticks: 0 }
    }

    /// Sets the counter's frequency, in Hz.
    pub const fn set_frequency(&mut self, hz: u64) {
        self.hz = hz;
    }

    /// Adds the ticks of the counter that a command took.
    pub const fn add(&mut self, ticks: u64) {
        self.ticks = self.ticks.saturating_add(ticks);
    }

    /// Puts the work into the answer of a request, and resets the count for the next one.
    pub fn report(&mut self, reply: Reply) -> Reply {
        let work = self.work();
        self.ticks = 0;
        match reply {
            Reply::Copied(copied) => Reply::Copied(Copied { work, ..copied }),
            Reply::Loaded(_) => Reply::Loaded(work),
            reply => reply,
        }
    }

    fn work(&self) -> Work {
        let nanoseconds = u128::from(self.ticks) * 1_000_000_000 / u128::from(self.hz.max(1));
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        let instructions = match self.counting {
            Counting::Time => None,
            Counting::PerTick => Some(self.ticks),
            Counting::PerNanosecond => Some(nanoseconds),
        };
        Work { nanoseconds, instructions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_its_own_work() {
        let counts = [(Counting::Time, None), (Counting::PerTick, Some(500)), (Counting::PerNanosecond, Some(2_000))];
        for (counting, instructions) in counts {
            let mut meter = WorkMeter::new(counting);
            meter.set_frequency(250_000_000);
            meter.add(200);
            meter.add(300);
            assert_eq!(meter.report(Reply::Loaded(Work::default())), Reply::Loaded(Work { nanoseconds: 2_000, instructions }));
            let Reply::Loaded(work) = meter.report(Reply::Loaded(Work::default())) else { panic!("another answer") };
            assert_eq!(work.nanoseconds, 0);
            assert_eq!(meter.report(Reply::Done), Reply::Done);
        }
    }
}
