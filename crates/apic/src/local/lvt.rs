//! The local vector table ("Local Vector Table").

use crate::{Delivery, Pages, offset};

pub(crate) const ENTRIES: usize = 7;
pub(crate) const TIMER: usize = 0;
pub(crate) const LINT0: usize = 3;
pub(crate) const LINT1: usize = 4;
const CMCI: usize = 6;

pub(crate) const MASKED: u32 = 1 << 16;
/// The writable bits of each entry.
const WRITABLE: [u32; ENTRIES] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff, 0x1_07ff];

/// The timer's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerMode {
    OneShot,
    Periodic,
    Deadline,
    Reserved,
}

/// The offset of an entry's register in the APIC's page.
pub(crate) const fn offset_of(entry: usize) -> u32 {
    if entry == CMCI { offset::LVT_CMCI } else { offset::LVT_TIMER + 16 * entry as u32 }
}

/// The entry of the register at `offset`.
pub(super) const fn at(offset: u32) -> Option<usize> {
    match offset {
        offset::LVT_TIMER..=offset::LVT_ERROR if offset & 0xf == 0 => Some((offset - offset::LVT_TIMER) as usize >> 4),
        offset::LVT_CMCI => Some(CMCI),
        _ => None,
    }
}

pub(super) const fn writable(entry: usize) -> u32 {
    WRITABLE[entry]
}

/// Entries stay masked while the APIC is software-disabled.
pub(super) fn write(pages: &Pages, entry: usize, value: u32, enabled: bool) {
    pages.set(offset_of(entry), value & WRITABLE[entry] | if enabled { 0 } else { MASKED });
}

pub(super) fn mask_all(pages: &Pages) {
    for offset in (0..ENTRIES).map(offset_of) {
        pages.set(offset, pages.get(offset) | MASKED);
    }
}

pub(crate) fn enabled(pages: &Pages, entry: usize) -> bool {
    pages.get(offset_of(entry)) & MASKED == 0
}

pub(crate) fn vector(pages: &Pages, entry: usize) -> u8 {
    pages.get(offset_of(entry)) as u8
}

/// The timer's and error entry's mode is always fixed.
pub(crate) fn delivery(pages: &Pages, entry: usize) -> Option<Delivery> {
    Delivery::from_bits((pages.get(offset_of(entry)) & WRITABLE[entry] & 0x700).into())
}

pub(super) fn timer_mode(pages: &Pages) -> TimerMode {
    match pages.get(offset_of(TIMER)) >> 17 & 3 {
        0 => TimerMode::OneShot,
        1 => TimerMode::Periodic,
        2 => TimerMode::Deadline,
        _ => TimerMode::Reserved,
    }
}
