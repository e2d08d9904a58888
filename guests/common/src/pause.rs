//! Notices that this guest was paused, by two clocks of which a pause stops one.

/// Attempts to read both clocks close to each other. Between two reads of an attempt the vCPU, or an emulator's thread, may lose its CPU.
const ATTEMPTS: u32 = 8;

/// The two clocks, in the same unit.
pub struct Clocks<H, R> {
    /// The clock that a pause stops.
    pub held: H,
    /// The clock that does not stop.
    pub running: R,
    /// A time that is shorter than any pause to be noticed.
    pub slack: u64,
}

/// A reading of the clock that a pause stops, between two of the other one.
#[derive(Clone, Copy)]
struct Reading {
    before: u64,
    held: u64,
    after: u64,
}

impl Reading {
    /// The attempt in which the two readings of the running clock are closest to each other.
    fn closest(held: impl Fn() -> u64, running: impl Fn() -> u64) -> Self {
        let read = || Self { before: running(), held: held(), after: running() };
        let better = |best: Self, next: Self| if next.span() < best.span() { next } else { best };
        (1..ATTEMPTS).fold(read(), |best, _| better(best, read()))
    }

    fn span(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
}

/// Measures the ticks of `held` in one of `running`, times 2^16, for `span` ticks of `running`. The result is rounded down: a ratio that
/// is too high would look like a pause.
pub fn ratio(held: impl Fn() -> u64, running: impl Fn() -> u64, span: u64) -> u64 {
    let first = Reading::closest(&held, &running);
    while running().wrapping_sub(first.after) < span {}
    let last = Reading::closest(&held, &running);
    (last.held.wrapping_sub(first.held) << 16) / last.after.wrapping_sub(first.before)
}

impl<H: Fn() -> u64, R: Fn() -> u64> Clocks<H, R> {
    /// By how much the running clock is ahead: minimum and maximum, since both are not read simultaneously.
    fn ahead(&self) -> (u64, u64) {
        let reading = Reading::closest(&self.held, &self.running);
        (reading.before.wrapping_sub(reading.held), reading.after.wrapping_sub(reading.held))
    }

    /// Begins to watch for pauses.
    pub fn watch(self) -> Watch<H, R> {
        let first = self.ahead().1;
        Watch { clocks: self, first }
    }
}

/// A watch for pauses.
pub struct Watch<H, R> {
    clocks: Clocks<H, R>,
    /// Upper bound of the running clock's lead, by the closest reading since the last pause.
    first: u64,
}

impl<H: Fn() -> u64, R: Fn() -> u64> Watch<H, R> {
    /// Returns the lead that the running clock has gained since the last pause if it exceeds the slack. Losing the CPU, or an emulator's
    /// host losing it, moves both clocks. On another machine the running clock may be behind.
    pub fn gained(&mut self) -> Option<u64> {
        let (least, most) = self.clocks.ahead();
        let gained = least.wrapping_sub(self.first) as i64;
        let is_pause = gained > self.clocks.slack as i64;
        if is_pause || (most.wrapping_sub(self.first) as i64) < 0 {
            self.first = most;
        }
        is_pause.then_some(gained as u64)
    }

    /// Waits for a pause. Returns by how much the running clock has got ahead.
    pub fn wait(&mut self) -> u64 {
        loop {
            if let Some(gained) = self.gained() {
                return gained;
            }
        }
    }
}
