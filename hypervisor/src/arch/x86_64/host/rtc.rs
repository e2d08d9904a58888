//! The board's real-time clock (Motorola MC146818, "Time, Calendar and Alarm Locations"), read once at boot.

use super::instructions::{in8, out8};

const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
const UPDATING: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
const AFTERNOON: u8 = 1 << 7;
/// Maximum number of polls for the end of an update, which takes 2 ms.
const PATIENCE: u32 = 1_000_000;

fn read(register: u8) -> u8 {
    // SAFETY: nothing else uses the clock; a clear bit 7 leaves NMIs enabled.
    unsafe {
        out8(0x70, register);
        in8(0x71)
    }
}

/// Unix time, if there is a plausible clock.
pub fn seconds() -> Option<u64> {
    (0..PATIENCE).find(|_| read(STATUS_A) & UPDATING == 0)?;
    let status = read(STATUS_B);
    let number = |value: u8| u64::from(if status & BINARY != 0 { value } else { (value >> 4) * 10 + (value & 0xf) });
    let hours = read(4);
    let mut hour = number(hours & !AFTERNOON);
    if status & HOURS_24 == 0 {
        hour = hour % 12 + if hours & AFTERNOON != 0 { 12 } else { 0 };
    }
    let (second, minute) = (number(read(0)), number(read(2)));
    let (day, month, year) = (number(read(7)), number(read(8)), 2000 + number(read(9)));
    if second > 60 || minute > 59 || hour > 23 || !(1..=31).contains(&day) || !(1..=12).contains(&month) {
        return None;
    }
    // Days to the first of March, at which the year starts here, so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    const DAYS_TO_1970: u64 = 719_468;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}
