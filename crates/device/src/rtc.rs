//! Real-time clock and CMOS memory: *MC146818 Real-Time Clock plus RAM*, at ports 0x70 and 0x71.
//!
//! The time is the caller's `now`, in seconds since 1970, plus the guest's offset. Alarm, periodic and update interrupts cannot be
//! enabled.

#[cfg(test)]
mod tests;

use stile_snapshot::pc::Rtc as Saved;

use crate::lead;

mod index {
    pub const SECONDS: u8 = 0;
    pub const MINUTES: u8 = 2;
    pub const HOURS: u8 = 4;
    pub const WEEKDAY: u8 = 6;
    pub const DAY: u8 = 7;
    pub const MONTH: u8 = 8;
    pub const YEAR: u8 = 9;
    pub const A: u8 = 0xa;
    pub const B: u8 = 0xb;
    pub const C: u8 = 0xc;
    pub const D: u8 = 0xd;
    /// The century, as the FADT says.
    pub const CENTURY: u8 = 0x32;
}

/// The index of the century's byte, for the FADT.
pub const CENTURY: u8 = index::CENTURY;

/// Divider chain on, 1,024 Hz.
const A_RESET: u8 = 0x26;
/// UIP: an update is in progress or imminent.
const A_UPDATES: u8 = 1 << 7;
/// UIP is set for this number of microseconds before a second ends: the update cycle and its lead time ("Update Cycle").
pub const UPDATE_US: u64 = 1984 + 244;
/// SET: updates are inhibited while the guest sets the time.
const B_SET: u8 = 1 << 7;
const B_BINARY: u8 = 1 << 2;
const B_24_HOURS: u8 = 1 << 1;
const B_WRITABLE: u8 = B_SET | B_BINARY | B_24_HOURS | 1;
/// VRT: RAM and time are valid.
const D_VALID: u8 = 1 << 7;
const PM: u8 = 1 << 7;

/// Date and time of day, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Time {
    year: u16,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Time {
    fn from_seconds(seconds: u64) -> Self {
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Counts years from March, in eras of 400 years, from 0000-03-01.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self {
            year: year as u16,
            month: month as u8,
            day: (day_of_year - (153 * from_march + 2) / 5 + 1) as u8,
            hour: (rest / 3_600) as u8,
            minute: (rest / 60 % 60) as u8,
            second: (rest % 60) as u8,
        }
    }

    /// Converts to seconds since 1970. Fields out of range carry into the next, so every setting is a valid time.
    fn seconds(self) -> u64 {
        let (year, month) = (i64::from(self.year), i64::from(self.month));
        let year = if month <= 2 { year - 1 } else { year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let from_march = (month + 9).rem_euclid(12);
        let day_of_year = (153 * from_march + 2) / 5 + i64::from(self.day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = era * 146_097 + day_of_era - 719_468;
        let seconds = days * 86_400 + i64::from(self.hour) * 3_600 + i64::from(self.minute) * 60 + i64::from(self.second);
        seconds.max(0) as u64
    }
}

/// A real-time clock with its memory.
#[derive(Clone, Debug)]
pub struct Rtc {
    index: u8,
    /// The guest's offset in seconds.
    ahead: u64,
    /// Seconds that are added to `now` since the VM moved ([`crate::lead`]).
    lead: u64,
    /// The time registers while SET is set.
    setting: Time,
    a: u8,
    b: u8,
    memory: [u8; 128],
}

impl Default for Rtc {
    fn default() -> Self {
        Self::new()
    }
}

impl Rtc {
    /// The reset state: the caller's time, in BCD and 24-hour mode.
    pub const fn new() -> Self {
        let setting = Time { year: 0, month: 0, day: 0, hour: 0, minute: 0, second: 0 };
        Self { index: 0, ahead: 0, lead: 0, setting, a: A_RESET, b: B_24_HOURS, memory: [0; 128] }
    }

    /// The guest reads port 0x70 + `offset`, 0 or 1. `updates`: the second ends in at most [`UPDATE_US`].
    pub fn read(&self, offset: u16, now: u64, updates: bool) -> u8 {
        if offset == 0 {
            // The index register is write-only.
            return 0xff;
        }
        let time = self.time(now);
        match self.index {
            index::SECONDS => self.encode(time.second),
            index::MINUTES => self.encode(time.minute),
            index::HOURS => self.encode_hour(time.hour),
            index::WEEKDAY => self.encode(((time.seconds() / 86_400 + 4) % 7) as u8 + 1),
            index::DAY => self.encode(time.day),
            index::MONTH => self.encode(time.month),
            index::YEAR => self.encode((time.year % 100) as u8),
            index::CENTURY => self.encode((time.year / 100) as u8),
            index::A => self.a | if updates && self.b & B_SET == 0 { A_UPDATES } else { 0 },
            index::B => self.b,
            index::C => 0,
            index::D => D_VALID,
            index => self.memory.get(usize::from(index)).copied().unwrap_or(0),
        }
    }

    /// The guest writes port 0x70 + `offset`, 0 or 1.
    pub fn write(&mut self, offset: u16, value: u8, now: u64) {
        if offset == 0 {
            // Bit 7 masks NMIs on a PC.
            self.index = value & 0x7f;
            return;
        }
        let mut time = self.time(now);
        match self.index {
            index::SECONDS => time.second = self.decode(value),
            index::MINUTES => time.minute = self.decode(value),
            index::HOURS => time.hour = self.decode_hour(value),
            index::DAY => time.day = self.decode(value),
            index::MONTH => time.month = self.decode(value),
            index::YEAR => time.year = time.year / 100 * 100 + u16::from(self.decode(value) % 100),
            index::CENTURY => time.year = time.year % 100 + u16::from(self.decode(value)) * 100,
            index::A => self.a = value & 0x7f,
            index::B => {
                // If this changes SET, the time stops below, or continues from the new setting.
                self.b = value & B_WRITABLE;
            }
            index::WEEKDAY | index::C | index::D => {}
            index => {
                if let Some(byte) = self.memory.get_mut(usize::from(index)) {
                    *byte = value;
                }
            }
        }
        self.setting = time;
        self.ahead = time.seconds().wrapping_sub(now.wrapping_add(self.lead));
    }

    /// Exports the state.
    pub fn save(&self) -> Saved {
        let Time { year, month, day, hour, minute, second } = self.setting;
        let mut memory = [[0; 32]; 4];
        memory.as_flattened_mut().copy_from_slice(&self.memory);
        let setting = (year, [month, day, hour, minute, second]);
        Saved { index: self.index, ahead: self.ahead, lead: self.lead, setting, a: self.a, b: self.b, memory }
    }

    /// Imports a state, reduced to one that a guest could have produced. `exported`: the time of the export. It may be
    /// later than `now`, if that is of another machine: the guest's clock does not go back.
    pub fn restore(&mut self, from: &Saved, now: u64, exported: u64) {
        let (year, [month, day, hour, minute, second]) = from.setting;
        // A guest sets the last two digits; the others are those of a time.
        let year = year.min(Time::from_seconds(MAX_SECONDS - 1).year / 100 * 100 + 255);
        let setting = Time { year, month, day, hour, minute, second };
        *self = Self {
            index: from.index & 0x7f,
            ahead: from.ahead,
            lead: lead::restored(from.lead, now, exported),
            setting,
            a: from.a & 0x7f,
            b: from.b & B_WRITABLE,
            ..Self::new()
        };
        self.memory.copy_from_slice(from.memory.as_flattened());
    }

    fn time(&self, now: u64) -> Time {
        if self.b & B_SET != 0 {
            self.setting
        } else {
            Time::from_seconds(now.wrapping_add(self.lead).wrapping_add(self.ahead) % MAX_SECONDS)
        }
    }

    const fn encode(&self, value: u8) -> u8 {
        if self.b & B_BINARY != 0 { value } else { (value / 10).wrapping_mul(16) + value % 10 }
    }

    const fn decode(&self, value: u8) -> u8 {
        if self.b & B_BINARY != 0 { value } else { (value >> 4) * 10 + (value & 0xf) }
    }

    const fn encode_hour(&self, hour: u8) -> u8 {
        if self.b & B_24_HOURS != 0 {
            return self.encode(hour);
        }
        let twelve = (hour % 12 + 11) % 12 + 1;
        self.encode(twelve) | if hour >= 12 { PM } else { 0 }
    }

    const fn decode_hour(&self, value: u8) -> u8 {
        if self.b & B_24_HOURS != 0 {
            return self.decode(value);
        }
        self.decode(value & !PM) % 12 + if value & PM != 0 { 12 } else { 0 }
    }
}

/// The first of January of the year 10,000: a century has two digits.
const MAX_SECONDS: u64 = 253_402_300_800;
