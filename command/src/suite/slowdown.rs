//! Time-outs on a machine that is busy with other work: they grow with its load, as if the emulator had the CPUs to itself.

use std::fs;
use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

/// Largest factor by which a time-out grows: a run that hangs has an end.
const MOST: f64 = 10.0;

/// A clock that slows down in proportion to the threads that want to run on each CPU.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    passed: Duration,
}

impl Clock {
    /// Starts at 0.
    pub fn start() -> Self {
        Self { last: Instant::now(), passed: Duration::ZERO }
    }

    /// Returns the time on the clock. Since the last call, it advances at the present load: call this often.
    pub fn elapsed(&mut self) -> Duration {
        self.advance(Instant::now(), slowdown())
    }

    fn advance(&mut self, now: Instant, slowdown: f64) -> Duration {
        let real = now.saturating_duration_since(self.last);
        self.last = now;
        self.passed += real.div_f64(slowdown);
        self.passed
    }
}

/// Returns a time-out that begins now, at the present load.
pub fn stretched(limit: Duration) -> Duration {
    limit.mul_f64(slowdown())
}

/// Returns the longest that a time-out can become.
pub fn longest(limit: Duration) -> Duration {
    limit.mul_f64(MOST)
}

/// Returns the factor by which this machine is slower now than with a CPU for each thread.
fn slowdown() -> f64 {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    // Without this file, the load is unknown.
    fs::read_to_string("/proc/loadavg").map_or(1.0, |load| factor(&load, cpus as f64))
}

/// Returns the factor by the text of `/proc/loadavg`, whose first number is the average of the last minute.
fn factor(load: &str, cpus: f64) -> f64 {
    let threads = load.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    threads.map_or(1.0, |threads| threads / cpus).clamp(1.0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_threads_per_cpu_within_bounds() {
        let factors = ["0.10 9.0 9.0 1/9 1", "5.00 0 0 1/9 1", "1e9 0 0 1/9 1", "NaN", ""].map(|load| factor(load, 2.0));
        assert_eq!(factors[..3], [1.0, 2.5, MOST]);
        assert_eq!(factors[4], 1.0);
    }

    #[test]
    fn a_clock_slows_down_with_the_load() {
        let mut clock = Clock::start();
        let start = clock.last;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(clock.advance(at(100), 1.0), Duration::from_secs(100));
        assert_eq!(clock.advance(at(200), 5.0), Duration::from_secs(120));
        assert_eq!(clock.advance(at(150), 1.0), Duration::from_secs(120), "an instant before the last one");
        assert_eq!(clock.advance(at(170), MOST), Duration::from_secs(122));
    }
}
