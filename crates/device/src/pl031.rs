//! Arm PrimeCell Real Time Clock (PL031): *PrimeCell Real Time Clock (PL031) Technical Reference
//! Manual*, DDI 0224.
//!
//! The counter is not stepped: its value is the caller's `now`, in seconds of a monotonic clock,
//! plus the offset that the guest set through `RTCLR`. The alarm is a point of that clock: the
//! caller reads it ([`Pl031::deadline`]) and reports when it has passed ([`Pl031::expire`]). Loads
//! have no side effects.
//!
//! The counter is enabled at reset. On the hardware, `RTCCR` enables it permanently; a guest that
//! does not write `RTCCR` would otherwise see time stand still.

use stile_snapshot::device::Pl031 as Saved;

use crate::lead;
use crate::line::Line;
use crate::primecell::{ID_BASE, Id};

/// Byte offsets of the registers: DDI 0224, "Summary of registers".
pub mod offset {
    /// Data register: the counter, in seconds.
    pub const DR: u32 = 0x000;
    /// Match register: the counter value that raises the alarm.
    pub const MR: u32 = 0x004;
    /// Load register: sets the counter.
    pub const LR: u32 = 0x008;
    /// Control register.
    pub const CR: u32 = 0x00c;
    /// Interrupt mask set/clear: a 1 lets the interrupt through.
    pub const IMSC: u32 = 0x010;
    /// Raw interrupt status.
    pub const RIS: u32 = 0x014;
    /// Masked interrupt status.
    pub const MIS: u32 = 0x018;
    /// Interrupt clear.
    pub const ICR: u32 = 0x01c;
}

/// `RTCCR`: the counter runs.
const CR_START: u32 = 1;
/// The one interrupt's bit in the interrupt registers.
const INT: u32 = 1;
/// Revision 1, as on Arm's boards and in QEMU.
const ID: Id = Id::arm(0x031, 1);

/// A PL031.
#[derive(Clone, Debug)]
pub struct Pl031 {
    /// The counter's offset from `now` and `lead`, modulo 2^32.
    ahead: u32,
    /// Seconds that are added to `now` since the VM moved ([`crate::lead`]).
    lead: u64,
    matching: u32,
    loaded: u32,
    raw: u32,
    mask: u32,
    /// The time at which the counter next equals `matching`. None until the guest sets a match.
    alarm: Option<u64>,
    line: Line,
}

impl Pl031 {
    /// A clock whose counter reads `epoch_seconds` (seconds since 1970, modulo 2^32) at `now`.
    pub const fn new(epoch_seconds: u32, now: u64) -> Self {
        Self {
            ahead: epoch_seconds.wrapping_sub(now as u32),
            lead: 0,
            matching: 0,
            loaded: 0,
            raw: 0,
            mask: 0,
            alarm: None,
            line: Line::LOW,
        }
    }

    /// The guest loads from `offset`.
    pub fn read(&self, offset: u32, now: u64) -> u32 {
        let raw = self.raw_at(now);
        let register = match offset & !3 {
            offset::DR => self.counter(now),
            offset::MR => self.matching,
            offset::LR => self.loaded,
            offset::CR => CR_START,
            offset::IMSC => self.mask,
            offset::RIS => raw,
            offset::MIS => raw & self.mask,
            identification @ ID_BASE.. => ID.read(identification),
            _ => 0,
        };
        register >> ((offset & 3) * 8)
    }

    /// The guest stores `value`, zero-extended from the access's width, to `offset`.
    /// Returns the interrupt line's new level, if it changed.
    pub fn write(&mut self, offset: u32, value: u32, now: u64) -> Option<bool> {
        // Raise a passed alarm before the access can clear or move it.
        self.catch_up(now);
        match offset {
            offset::MR => {
                self.matching = value;
                self.set_alarm(now);
            }
            offset::LR => {
                self.loaded = value;
                self.ahead = value.wrapping_sub(self.time(now));
                if self.alarm.is_some() {
                    self.set_alarm(now);
                }
            }
            offset::IMSC => self.mask = value & INT,
            offset::ICR => self.raw &= !value,
            _ => {}
        }
        self.update_line()
    }

    /// Raises the alarm if it is due. Returns the interrupt line's new level, if it changed. Idempotent;
    /// early calls have no effect.
    pub fn expire(&mut self, now: u64) -> Option<bool> {
        self.catch_up(now);
        self.update_line()
    }

    /// The time at which [`Pl031::expire`] must be called next, in seconds of `now`. None if no alarm
    /// is set, or its interrupt is masked or already raised.
    pub fn deadline(&self) -> Option<u64> {
        self.alarm.filter(|_| self.mask & !self.raw & INT != 0)
    }

    /// The interrupt line's level, `RTCINTR`.
    pub const fn irq(&self) -> bool {
        self.line.level()
    }

    /// Exports the state.
    pub const fn save(&self) -> Saved {
        let Self { ahead, lead, matching, loaded, raw, mask, alarm, .. } = *self;
        Saved { ahead, lead, matching, loaded, raw, mask, alarm }
    }

    /// Imports a state at `now`, reduced to one that a guest could have produced. `exported`: the time of the
    /// export, which may be later than `now`, as on another machine: the counter does not go back. Returns the interrupt
    /// line's level.
    pub fn restore(&mut self, from: &Saved, now: u64, exported: u64) -> bool {
        let Saved { ahead, lead: old, matching, loaded, raw, mask, alarm } = *from;
        let lead = lead::restored(old, now, exported);
        *self = Self { ahead, lead, matching, loaded, raw: raw & INT, mask: mask & INT, alarm: None, line: Line::LOW };
        if let Some(alarm) = alarm {
            // `alarm` was relative to the old lead.
            if alarm.saturating_add(old) <= now.saturating_add(lead) {
                self.raw |= INT;
            }
            self.alarm = self.next_match(now);
        }
        let _ = self.update_line();
        self.irq()
    }

    const fn counter(&self, now: u64) -> u32 {
        self.time(now).wrapping_add(self.ahead)
    }

    /// The time that the counter is relative to.
    const fn time(&self, now: u64) -> u32 {
        now.wrapping_add(self.lead) as u32
    }

    fn set_alarm(&mut self, now: u64) {
        let wait = self.matching.wrapping_sub(self.counter(now));
        self.alarm = now.checked_add(wait.into());
        self.catch_up(now);
    }

    /// The raw interrupt status at `now`.
    fn raw_at(&self, now: u64) -> u32 {
        match self.alarm {
            Some(alarm) if alarm <= now => self.raw | INT,
            _ => self.raw,
        }
    }

    fn catch_up(&mut self, now: u64) {
        self.raw = self.raw_at(now);
        if self.alarm.is_some_and(|alarm| alarm <= now) {
            self.alarm = self.next_match(now);
        }
    }

    /// The first time after `now` at which the counter equals `matching`: up to a whole round, if it does now.
    fn next_match(&self, now: u64) -> Option<u64> {
        now.checked_add(1 + u64::from(self.matching.wrapping_sub(self.counter(now)).wrapping_sub(1)))
    }

    fn update_line(&mut self) -> Option<bool> {
        self.line.drive(self.raw & self.mask != 0)
    }
}

#[cfg(test)]
mod tests;
