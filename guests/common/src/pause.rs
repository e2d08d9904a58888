//! Notices that this guest was paused, by two clocks of which a pause stops one.

/// The two clocks, in the same unit.
pub struct Clocks<H, R> {
    /// The clock that a pause stops.
    pub held: H,
    /// The clock that does not stop.
    pub running: R,
    /// A time that is shorter than any pause to be noticed.
    pub slack: u64,
}

impl<H: Fn() -> u64, R: Fn() -> u64> Clocks<H, R> {
    /// By how much the running clock is ahead: minimum and maximum, since both are not read simultaneously.
    fn ahead(&self) -> (u64, u64) {
        let before = (self.running)();
        let held = (self.held)();
        let after = (self.running)();
        (before.wrapping_sub(held), after.wrapping_sub(held))
    }

    /// Waits until the running clock has got ahead by more than the slack. Returns by how much. Losing the CPU, or an
    /// emulator's host losing it, moves both.
    pub fn wait(&self) -> u64 {
        let mut first = self.ahead().1;
        loop {
            let (least, most) = self.ahead();
            let gained = least.wrapping_sub(first) as i64;
            if gained > self.slack as i64 {
                return gained as u64;
            }
            // The closest reading so far.
            if (most.wrapping_sub(first) as i64) < 0 {
                first = most;
            }
        }
    }
}
