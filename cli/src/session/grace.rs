//! The wait for the emulator's end after Stile's last message.

use std::time::{Duration, Instant};

/// Silence of the machine that ends the wait. A backtrace arrives slowly from an emulator on a busy host.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum length of the wait.
const LONGEST: Duration = Duration::from_secs(120);

/// The wait, which may not have begun.
#[derive(Debug, Default)]
pub struct Grace {
    /// Deadline, which output postpones, and the latest deadline.
    until: Option<(Instant, Instant)>,
}

impl Grace {
    /// Begins the wait, unless it has begun.
    pub fn begin(&mut self, now: Instant) {
        self.until.get_or_insert((now + SILENCE, now + LONGEST));
    }

    /// Postpones the deadline, since the machine has sent output.
    pub fn heard(&mut self, now: Instant) {
        if let Some((until, last)) = &mut self.until {
            *until = (now + SILENCE).min(*last);
        }
    }

    /// Returns the time at which the wait is over.
    pub fn until(&self) -> Option<Instant> {
        self.until.map(|(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_extends_the_wait_within_a_limit() {
        let (mut grace, start) = (Grace::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        grace.heard(at(0));
        assert_eq!(grace.until(), None);
        grace.begin(at(0));
        grace.begin(at(5));
        assert_eq!(grace.until(), Some(at(10)));
        grace.heard(at(9));
        assert_eq!(grace.until(), Some(at(19)));
        grace.heard(at(115));
        assert_eq!(grace.until(), Some(at(120)));
    }
}
