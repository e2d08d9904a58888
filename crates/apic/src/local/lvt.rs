//! The local vector table ("Local Vector Table").

use crate::{Delivery, offset};

const ENTRIES: usize = 7;
pub(super) const TIMER: usize = 0;
pub(super) const LINT0: usize = 3;
pub(super) const LINT1: usize = 4;
pub(super) const ERROR: usize = 5;
const CMCI: usize = 6;

const MASKED: u32 = 1 << 16;
/// What each entry holds.
const WRITABLE: [u32; ENTRIES] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff, 0x1_07ff];

/// What the timer does when it runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerMode {
    OneShot,
    Periodic,
    Deadline,
    Reserved,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Lvt([u32; ENTRIES]);

impl Lvt {
    pub(super) const RESET: Self = Self([MASKED; ENTRIES]);

    /// The entry whose register is at `offset`.
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

    pub(super) const fn read(&self, entry: usize) -> u32 {
        self.0[entry]
    }

    /// Entries stay masked while software has the APIC disabled.
    pub(super) fn write(&mut self, entry: usize, value: u32, enabled: bool) {
        self.0[entry] = value & WRITABLE[entry] | if enabled { 0 } else { MASKED };
    }

    pub(super) fn mask_all(&mut self) {
        for entry in &mut self.0 {
            *entry |= MASKED;
        }
    }

    pub(super) const fn enabled(&self, entry: usize) -> bool {
        self.0[entry] & MASKED == 0
    }

    pub(super) const fn vector(&self, entry: usize) -> u8 {
        self.0[entry] as u8
    }

    /// The timer's and errors' are always fixed.
    pub(super) const fn delivery(&self, entry: usize) -> Option<Delivery> {
        Delivery::from_bits((self.0[entry] & WRITABLE[entry] & 0x700) as u64)
    }

    pub(super) const fn timer_mode(&self) -> TimerMode {
        match self.0[TIMER] >> 17 & 3 {
            0 => TimerMode::OneShot,
            1 => TimerMode::Periodic,
            2 => TimerMode::Deadline,
            _ => TimerMode::Reserved,
        }
    }
}
