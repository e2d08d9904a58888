//! 8254 timer: *82C54 CHMOS Programmable Interval Timer*, with the PC's port 0x61 that gates its third counter.
//!
//! Time is the caller's `now`, in ticks of the timer's 1,193,182 Hz clock. BCD counting is not supported. In modes 1 and 5 the third
//! counter is triggered by its gate; the others, whose gates are always open on a PC, act as in modes 0 and 4.

#[cfg(test)]
mod tests;

use stile_snapshot::pc::{Counter as SavedCounter, Pit as Saved};

/// Ticks per second.
pub const FREQUENCY: u64 = 1_193_182;

/// The state of a two-byte access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Low,
    High,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    /// 1 to 65,536.
    count: u64,
    mode: u8,
    /// Access mode: 1 low byte, 2 high byte, 3 both.
    access: u8,
    next_write: Half,
    next_read: Half,
    low: u8,
    latched: Option<u16>,
    status: Option<u8>,
    /// Time of the load or trigger; None before the first load.
    start: Option<u64>,
    /// Elapsed ticks when its gate closed.
    stopped: Option<u64>,
    /// It has a gate.
    gated: bool,
}

impl Counter {
    const RESET: Self = Self {
        count: 0x1_0000,
        mode: 0,
        access: 3,
        next_write: Half::Low,
        next_read: Half::Low,
        low: 0,
        latched: None,
        status: None,
        start: None,
        stopped: None,
        gated: false,
    };

    /// Whether the counter is triggered: it starts when its gate opens, and ignores the gate afterwards.
    const fn is_triggered(&self) -> bool {
        self.gated && matches!(self.mode, 1 | 5)
    }

    /// Ticks since the load or trigger, excluding those with its gate closed.
    fn elapsed(&self, now: u64) -> Option<u64> {
        let start = self.start?;
        let stopped = self.stopped.filter(|_| !self.is_triggered());
        Some(stopped.unwrap_or_else(|| now.saturating_sub(start)))
    }

    const fn periodic(&self) -> bool {
        matches!(self.mode, 2 | 3)
    }

    fn value(&self, now: u64) -> u16 {
        let Some(elapsed) = self.elapsed(now) else { return 0 };
        let value = match self.mode {
            2 => self.count - elapsed % self.count,
            // Mode 3 counts by twos, in each half of the period.
            3 => self.count - (elapsed % self.count % self.count.div_ceil(2)) * 2,
            _ => self.count.wrapping_sub(elapsed),
        };
        value as u16
    }

    fn output(&self, now: u64) -> bool {
        let Some(elapsed) = self.elapsed(now) else { return self.mode != 0 };
        match self.mode {
            2 => elapsed % self.count != self.count - 1,
            3 => elapsed % self.count < self.count.div_ceil(2),
            4 | 5 => elapsed != self.count,
            _ => elapsed >= self.count,
        }
    }

    fn control(&mut self, value: u8) {
        // Bit 2 of the mode is ignored if bit 1 is set.
        let mode = value >> 1 & 7;
        self.mode = if mode & 2 != 0 { mode & 3 } else { mode };
        self.access = value >> 4 & 3;
        self.start = None;
        self.latched = None;
        self.status = None;
        (self.next_write, self.next_read) = (Half::Low, Half::Low);
    }

    /// Writes a byte of the count. True if that starts the counter.
    fn write(&mut self, value: u8, now: u64) -> bool {
        let count = match (self.access, self.next_write) {
            (1, _) => u16::from(value),
            (2, _) => u16::from(value) << 8,
            (_, Half::Low) => {
                self.low = value;
                self.next_write = Half::High;
                return false;
            }
            (_, Half::High) => {
                self.next_write = Half::Low;
                u16::from_le_bytes([self.low, value])
            }
        };
        self.count = if count == 0 { 0x1_0000 } else { count.into() };
        if self.is_triggered() {
            return true;
        }
        self.start = Some(now);
        self.stopped = self.stopped.map(|_| 0);
        true
    }

    fn read(&mut self, now: u64) -> u8 {
        if let Some(status) = self.status.take() {
            return status;
        }
        let [low, high] = self.latched.unwrap_or_else(|| self.value(now)).to_le_bytes();
        let (value, done) = match (self.access, self.next_read) {
            (1, _) => (low, true),
            (2, _) => (high, true),
            (_, Half::Low) => {
                self.next_read = Half::High;
                (low, false)
            }
            (_, Half::High) => {
                self.next_read = Half::Low;
                (high, true)
            }
        };
        if done {
            self.latched = None;
        }
        value
    }

    fn latch(&mut self, now: u64) {
        self.latched = self.latched.or(Some(self.value(now)));
    }

    fn latch_status(&mut self, now: u64) {
        let unloaded = u8::from(self.start.is_none());
        let status = u8::from(self.output(now)) << 7 | unloaded << 6 | self.access << 4 | self.mode << 1;
        self.status = self.status.or(Some(status));
    }

    fn save(&self, now: u64) -> SavedCounter {
        let Self { count, mode, access, next_write, next_read, low, latched, status, start, stopped, .. } = *self;
        let (writes_high, reads_high) = (next_write == Half::High, next_read == Half::High);
        let elapsed = start.map(|start| now.saturating_sub(start));
        SavedCounter { count: count as u32, mode, access, writes_high, reads_high, low, latched, status, elapsed, stopped }
    }

    /// Imports a state into a counter after reset.
    fn restore(&mut self, from: &SavedCounter, now: u64) {
        let half = |high| if high { Half::High } else { Half::Low };
        *self = Self {
            count: u64::from(from.count).clamp(1, 0x1_0000),
            mode: from.mode.min(5),
            access: if from.access & 3 == 0 { 3 } else { from.access & 3 },
            next_write: half(from.writes_high),
            next_read: half(from.reads_high),
            low: from.low,
            latched: from.latched,
            status: from.status,
            start: from.elapsed.map(|elapsed| now.saturating_sub(elapsed)),
            stopped: from.stopped.filter(|_| self.gated),
            gated: self.gated,
        };
    }

    /// Opens or closes the gate.
    fn set_gate(&mut self, open: bool, now: u64) {
        match (open, self.stopped) {
            (false, None) => self.stopped = Some(self.elapsed(now).unwrap_or(0)),
            (true, Some(elapsed)) => {
                self.stopped = None;
                if self.is_triggered() {
                    self.start = Some(now);
                    return;
                }
                let elapsed = if self.periodic() { 0 } else { elapsed };
                self.start = self.start.map(|_| now.saturating_sub(elapsed));
            }
            _ => {}
        }
    }
}

/// An 8254 and port 0x61.
#[derive(Clone, Debug)]
pub struct Pit {
    counters: [Counter; 3],
    /// Bits 1:0 of port 0x61: the gate of counter 2, and the speaker.
    speaker: u8,
    /// Time of counter 0's next interrupt.
    next: Option<u64>,
}

impl Default for Pit {
    fn default() -> Self {
        Self::new()
    }
}

impl Pit {
    /// The reset state: no counter runs before it is programmed.
    pub const fn new() -> Self {
        Self {
            counters: [Counter::RESET, Counter::RESET, Counter { stopped: Some(0), gated: true, ..Counter::RESET }],
            speaker: 0,
            next: None,
        }
    }

    /// The guest reads port 0x40 + `offset`, 0 to 3.
    pub fn read(&mut self, offset: u16, now: u64) -> u8 {
        match self.counters.get_mut(usize::from(offset)) {
            Some(counter) => counter.read(now),
            None => 0xff,
        }
    }

    /// The guest writes port 0x40 + `offset`, 0 to 3. [`deadline`](Self::deadline) may change.
    pub fn write(&mut self, offset: u16, value: u8, now: u64) {
        if offset == 3 {
            self.control(value, now);
        } else if let Some(counter) = self.counters.get_mut(usize::from(offset))
            && counter.write(value, now)
            && offset == 0
        {
            let count = counter.count;
            self.next = now.checked_add(count);
        }
    }

    /// The guest reads port 0x61: bit 5 is counter 2's output, bit 4 toggles with the memory refresh.
    pub fn read_speaker(&self, now: u64) -> u8 {
        self.speaker | ((now / 18) as u8 & 1) << 4 | u8::from(self.counters[2].output(now)) << 5
    }

    /// The guest writes port 0x61.
    pub fn write_speaker(&mut self, value: u8, now: u64) {
        self.speaker = value & 3;
        self.counters[2].set_gate(value & 1 != 0, now);
    }

    /// The time at which [`expire`](Self::expire) must be called.
    pub const fn deadline(&self) -> Option<u64> {
        self.next
    }

    /// Returns whether counter 0's output has risen since the last call: an edge on interrupt line 0. Missed edges merge into one.
    pub fn expire(&mut self, now: u64) -> bool {
        let Some(next) = self.next.filter(|&next| next <= now) else {
            return false;
        };
        let counter = &self.counters[0];
        self.next = if counter.periodic() { next.checked_add(((now - next) / counter.count + 1) * counter.count) } else { None };
        true
    }

    /// Exports the state at `now`.
    pub fn save(&self, now: u64) -> Saved {
        let counters = self.counters.each_ref().map(|counter| counter.save(now));
        Saved { counters, speaker: self.speaker, next: self.next.map(|next| next.saturating_sub(now)) }
    }

    /// Imports a state at `now`, reduced to one that a guest could have produced.
    pub fn restore(&mut self, from: &Saved, now: u64) {
        *self = Self::new();
        for (counter, saved) in self.counters.iter_mut().zip(&from.counters) {
            counter.restore(saved, now);
        }
        self.speaker = from.speaker & 3;
        let gate = &mut self.counters[2];
        if self.speaker & 1 != 0 {
            gate.stopped = None;
        } else {
            gate.stopped = gate.stopped.or(Some(0));
        }
        let first = &self.counters[0];
        let next = from.next.filter(|_| first.start.is_some());
        self.next = next.map(|left| now.saturating_add(left.min(first.count)));
    }

    fn control(&mut self, value: u8, now: u64) {
        let selected = usize::from(value >> 6);
        if let Some(counter) = self.counters.get_mut(selected) {
            if value & 0x30 == 0 {
                counter.latch(now);
                return;
            }
            counter.control(value);
            if selected == 0 {
                self.next = None;
            }
            return;
        }
        // Read-back command: a clear bit 5 latches the count, a clear bit 4 the status.
        for (_, counter) in self.counters.iter_mut().enumerate().filter(|(i, _)| value >> (i + 1) & 1 != 0) {
            if value & 0x20 == 0 {
                counter.latch(now);
            }
            if value & 0x10 == 0 {
                counter.latch_status(now);
            }
        }
    }
}
