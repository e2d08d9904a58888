//! The timer ("APIC Timer"). Its clock before division is the caller's `now`, which for deadlines is the guest's TSC.

use super::lvt::TimerMode;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    initial: u32,
    /// The divide configuration register.
    divide: u32,
    /// What it does when it runs out: the timer's local vector says so, too, but its old value is gone when it is written.
    mode: TimerMode,
    /// When the timer runs out next; 0 if it does not. With deadlines it is IA32_TSC_DEADLINE.
    next: u64,
    /// The least period that is kept.
    pub(super) least: u64,
    /// The local vector is not masked: if it is, the timer runs out without a word.
    heard: bool,
}

impl Timer {
    pub(super) const STOPPED: Self = Self { initial: 0, divide: 0, mode: TimerMode::OneShot, next: 0, least: 0, heard: false };

    pub(super) const fn initial(&self) -> u32 {
        self.initial
    }

    pub(super) const fn divide(&self) -> u32 {
        self.divide
    }

    pub(super) const fn deadline(&self) -> Option<u64> {
        if self.next == 0 { None } else { Some(self.next) }
    }

    fn has_deadlines(&self) -> bool {
        self.mode == TimerMode::Deadline
    }

    /// IA32_TSC_DEADLINE.
    pub(super) fn deadline_register(&self) -> u64 {
        if self.has_deadlines() { self.next } else { 0 }
    }

    /// Its place, while it takes what is written.
    #[inline(always)]
    pub(super) fn deadline_place(&mut self) -> Option<&mut u64> {
        self.has_deadlines().then_some(&mut self.next)
    }

    /// log2 of the divisor: bits 3, 1 and 0, where 7 means 1.
    const fn shift(&self) -> u32 {
        ((self.divide >> 1 & 4 | self.divide & 3) + 1) & 7
    }

    /// Initial count in units of `now`.
    const fn span(&self) -> u64 {
        (self.initial as u64) << self.shift()
    }

    pub(super) fn count(&self, now: u64) -> u32 {
        if self.has_deadlines() {
            return 0;
        }
        let left = if self.next > now { self.next - now } else { self.left_of_period(now) };
        u32::try_from(left >> self.shift()).unwrap_or(u32::MAX).min(self.initial)
    }

    /// What is left when `next` has come, or the timer does not run: nobody asked since the period ended.
    #[cold]
    fn left_of_period(&self, now: u64) -> u64 {
        let periodic = self.mode == TimerMode::Periodic && self.next != 0 && self.span() != 0;
        if periodic { self.span() - (now - self.next) % self.span() } else { 0 }
    }

    pub(super) fn set_initial(&mut self, count: u32, now: u64) {
        if self.has_deadlines() {
            return;
        }
        self.initial = count;
        self.next = if count == 0 { 0 } else { now.checked_add(self.span()).unwrap_or(0) };
    }

    pub(super) fn set_divide(&mut self, value: u32, now: u64) {
        let count = u64::from(self.count(now));
        self.divide = value & 0xb;
        if self.next != 0 && !self.has_deadlines() {
            // The count goes on from where it is at the new pace.
            self.next = now.checked_add(count << self.shift()).unwrap_or(0);
        }
    }

    /// Going to deadlines and coming from them stops the timer.
    pub(super) fn change_mode(&mut self, new: TimerMode) {
        let old = core::mem::replace(&mut self.mode, new);
        if old != new && (old == TimerMode::Deadline || new == TimerMode::Deadline) {
            self.next = 0;
            self.initial = 0;
        }
    }

    /// The local vector is masked or not from now on. What has run out while it was masked has gone by.
    #[cold]
    #[inline(never)]
    pub(super) fn hear(&mut self, on: bool, now: u64) {
        if !self.heard {
            self.expire(now);
        }
        self.heard = on;
    }

    /// When the period after the one that ended at `ended` ends: those that were missed count as one.
    #[cold]
    fn next_period(&self, ended: u64, now: u64) -> u64 {
        let next = if self.span() < self.least {
            now.checked_add(self.least)
        } else {
            let missed = (now - ended) / self.span();
            ended.checked_add((missed + 1).saturating_mul(self.span()))
        };
        next.unwrap_or(0)
    }

    /// Has it run out?
    #[inline(always)]
    pub(super) fn expire(&mut self, now: u64) -> bool {
        let next = self.next;
        if next == 0 || next > now {
            return false;
        }
        self.next = match self.mode {
            TimerMode::Periodic if self.span() != 0 => self.next_period(next, now),
            _ => 0,
        };
        true
    }
}
