//! The local APIC's timer (the manual, "APIC Timer"). Its input clock is the caller's `now`, in ticks of the caller's; in
//! deadline mode that is the guest's TSC.

use crate::lvt::TimerMode;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    /// The initial-count register, in ticks divided by the divisor.
    initial: u32,
    /// The divide configuration register.
    divide: u32,
    /// The current mode: a copy of the local vector's, whose old value is overwritten before a change is handled.
    mode: TimerMode,
    /// Time of the next expiry; 0 if stopped. In deadline mode it is IA32_TSC_DEADLINE.
    next: u64,
    /// The minimum period in ticks: a periodic timer that is faster is slowed down, so that it can't occupy its CPU.
    pub(super) least: u64,
    /// The local vector is not masked. An expiry while it is masked is dropped.
    unmasked: bool,
    /// The vector of the deadline in the physical timer ([`crate::HostTimer`]); `next` is 0 while it is lent.
    lent: Option<u8>,
}

impl Timer {
    pub(super) const STOPPED: Self =
        Self { initial: 0, divide: 0, mode: TimerMode::OneShot, next: 0, least: 0, unmasked: false, lent: None };

    pub(super) const fn initial(&self) -> u32 {
        self.initial
    }

    pub(super) const fn divide(&self) -> u32 {
        self.divide
    }

    pub(super) const fn deadline(&self) -> Option<u64> {
        if self.next == 0 { None } else { Some(self.next) }
    }

    pub(super) fn has_deadlines(&self) -> bool {
        self.mode == TimerMode::Deadline
    }

    /// IA32_TSC_DEADLINE.
    pub(super) fn deadline_register(&self) -> u64 {
        if self.has_deadlines() { self.next } else { 0 }
    }

    /// Takes IA32_TSC_DEADLINE out, for the physical timer: an interrupt of the physical timer stands for one of `vector`.
    pub(super) fn lend(&mut self, vector: u8) -> u64 {
        self.lent = Some(vector);
        core::mem::take(&mut self.next)
    }

    /// Ends [`Timer::lend`]; returns the vector that was given there.
    pub(super) fn give_back(&mut self, deadline: u64) -> Option<u8> {
        self.next = deadline;
        self.lent.take()
    }

    #[inline(always)]
    pub(super) const fn lent(&self) -> Option<u8> {
        self.lent
    }

    /// The storage of IA32_TSC_DEADLINE, while it can be written directly.
    #[inline(always)]
    pub(super) fn deadline_slot(&mut self) -> Option<&mut u64> {
        self.has_deadlines().then_some(&mut self.next)
    }

    /// Base-2 logarithm of the divisor. Bits 3, 1 and 0 of the register encode it less one; 7 is the divisor 1.
    const fn shift(&self) -> u32 {
        ((self.divide >> 1 & 4 | self.divide & 3) + 1) & 7
    }

    /// The initial count in ticks: the period.
    const fn span(&self) -> u64 {
        (self.initial as u64) << self.shift()
    }

    /// The current-count register.
    pub(super) fn count(&self, now: u64) -> u32 {
        if self.has_deadlines() {
            return 0;
        }
        let left = if self.next > now { self.next - now } else { self.left_of_period(now) };
        u32::try_from(left >> self.shift()).unwrap_or(u32::MAX).min(self.initial)
    }

    /// The ticks left when `next` has passed, or the timer is stopped.
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
            // The count continues from its current value at the new rate.
            self.next = now.checked_add(count << self.shift()).unwrap_or(0);
        }
    }

    /// A change to or from deadline mode stops the timer.
    pub(super) fn change_mode(&mut self, new: TimerMode) {
        let old = core::mem::replace(&mut self.mode, new);
        if old != new && (old == TimerMode::Deadline || new == TimerMode::Deadline) {
            self.next = 0;
            self.initial = 0;
        }
    }

    /// Records whether the local vector is unmasked. An expiry while it was masked is dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn set_unmasked(&mut self, unmasked: bool, now: u64) {
        if !self.unmasked {
            self.expire(now);
        }
        self.unmasked = unmasked;
    }

    /// Ticks from `now` until the next expiry, if it runs.
    pub(super) fn left(&self, now: u64) -> Option<u64> {
        self.deadline().map(|next| next.saturating_sub(now))
    }

    /// Returns a timer with these registers that expires in `left` ticks, if it runs. Without deadlines, `left` is limited to
    /// a period.
    pub(super) fn restored(initial: u32, divide: u32, mode: TimerMode, unmasked: bool, left: Option<u64>, now: u64) -> Self {
        let initial = if mode == TimerMode::Deadline { 0 } else { initial };
        let mut timer = Self { initial, divide: divide & 0xb, mode, unmasked, ..Self::STOPPED };
        let most = if mode == TimerMode::Deadline { u64::MAX } else { timer.span() };
        timer.next = left.filter(|_| most != 0).map_or(0, |left| now.saturating_add(left.min(most)).max(1));
        timer
    }

    /// Moves the next expiry `by` ticks later.
    pub(super) fn hold(&mut self, by: u64) {
        if self.next != 0 {
            self.next = self.next.saturating_add(by);
        }
    }

    /// Moves the next expiry `by` ticks earlier.
    pub(super) fn advance(&mut self, by: u64) {
        if self.next != 0 {
            self.next = self.next.saturating_sub(by).max(1);
        }
    }

    /// The end of the period after the one that ended at `ended`: missed periods are coalesced.
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

    /// Returns whether the timer has expired, and stops it or starts its next period if so.
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
