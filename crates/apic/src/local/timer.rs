//! The timer ("APIC Timer"). Its clock before division is the caller's `now`, which for deadlines is the guest's TSC.

use super::lvt::TimerMode;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    initial: u32,
    /// The divide configuration register.
    divide: u32,
    /// What it does when it runs out: the timer's local vector says so, too, but its old value is gone when it is written.
    mode: TimerMode,
    /// When the timer runs out next.
    next: Option<u64>,
    /// What runs now is a deadline.
    by_deadline: bool,
    /// The least period that is kept.
    pub(super) least: u64,
}

impl Timer {
    pub(super) const STOPPED: Self = Self { initial: 0, divide: 0, mode: TimerMode::OneShot, next: None, by_deadline: false, least: 0 };

    pub(super) const fn initial(&self) -> u32 {
        self.initial
    }

    pub(super) const fn divide(&self) -> u32 {
        self.divide
    }

    pub(super) const fn deadline(&self) -> Option<u64> {
        self.next
    }

    /// IA32_TSC_DEADLINE.
    pub(super) fn deadline_register(&self) -> u64 {
        self.next.filter(|_| self.by_deadline).unwrap_or(0)
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
        let Some(next) = self.next.filter(|_| !self.by_deadline) else {
            return 0;
        };
        let left = match now.checked_sub(next) {
            // Nobody asked since the period ended.
            Some(since) if self.mode == TimerMode::Periodic && self.span() != 0 => self.span() - since % self.span(),
            Some(_) => 0,
            None => next - now,
        };
        u32::try_from(left >> self.shift()).unwrap_or(u32::MAX).min(self.initial)
    }

    pub(super) fn set_initial(&mut self, count: u32, now: u64) {
        if self.mode == TimerMode::Deadline {
            return;
        }
        self.initial = count;
        self.by_deadline = false;
        self.next = if count == 0 { None } else { now.checked_add(self.span()) };
    }

    pub(super) fn set_divide(&mut self, value: u32, now: u64) {
        let count = u64::from(self.count(now));
        self.divide = value & 0xb;
        if self.next.is_some() && !self.by_deadline {
            // The count goes on from where it is at the new pace.
            self.next = now.checked_add(count << self.shift());
        }
    }

    pub(super) fn set_deadline(&mut self, value: u64) {
        if self.mode == TimerMode::Deadline {
            self.by_deadline = true;
            self.next = (value != 0).then_some(value);
        }
    }

    /// Going to deadlines and coming from them stops the timer.
    pub(super) fn change_mode(&mut self, new: TimerMode) {
        let old = core::mem::replace(&mut self.mode, new);
        if old != new && (old == TimerMode::Deadline || new == TimerMode::Deadline) {
            self.next = None;
            self.initial = 0;
            self.by_deadline = false;
        }
    }

    /// Has it run out? Periods that were missed count as one.
    pub(super) fn expire(&mut self, now: u64) -> bool {
        let Some(next) = self.next.filter(|&next| next <= now) else {
            return false;
        };
        self.next = match self.mode {
            TimerMode::Periodic if !self.by_deadline && self.span() != 0 => {
                if self.span() < self.least {
                    now.checked_add(self.least)
                } else {
                    let missed = (now - next) / self.span();
                    next.checked_add((missed + 1).saturating_mul(self.span()))
                }
            }
            _ => None,
        };
        true
    }
}
