//! Caps: upper limits of a VM's CPU time per period.

/// A VM's cap and its unused time.
///
/// CPUs take time in small grants before they run one of the VM's vCPUs, so that several CPUs can't spend the
/// same time. A grant never extends into the next period.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cap {
    /// Ticks per period.
    quota: u64,
    /// Length of the period in ticks.
    period: u64,
    /// Ticks not granted yet; negative if CPUs overran their grants, which is deducted from the next period.
    left: i64,
    /// End of the period.
    end: u64,
}

/// CPU time granted to a CPU for a vCPU of a capped VM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grant {
    from: u64,
    pub(crate) until: u64,
    /// End of the period to which it belongs.
    period_end: u64,
}

/// Number of grants per period if one CPU takes all of them.
const GRANTS: u64 = 20;

impl Cap {
    /// A cap of `quota` ticks per `period` ticks, both at least 1.
    pub(crate) fn new(quota: u64, period: u64) -> Self {
        Self { quota, period, left: 0, end: 0 }
    }

    /// Periods that have begun since the last refill.
    fn periods(&self, now: u64) -> u64 {
        if now < self.end { 0 } else { (now - self.end) / self.period + 1 }
    }

    /// Unused time at `now`. Time left over from earlier periods is forfeited.
    fn left_at(&self, now: u64) -> i64 {
        match self.periods(now) {
            0 => self.left,
            periods => {
                let more = i64::try_from(self.quota.saturating_mul(periods)).unwrap_or(i64::MAX);
                self.left.saturating_add(more).min(i64::try_from(self.quota).unwrap_or(i64::MAX))
            }
        }
    }

    /// Whether the VM has CPU time left.
    pub(crate) fn has_time(&self, now: u64) -> bool {
        self.left_at(now) > 0
    }

    /// Starts a new period if the current one is over.
    fn refill(&mut self, now: u64) {
        self.left = self.left_at(now);
        self.end = self.end.saturating_add(self.periods(now).saturating_mul(self.period));
    }

    /// Time at which the VM may run again, if its time is used up.
    pub(crate) fn next_period(&self, now: u64) -> u64 {
        self.end.saturating_add(self.periods(now).saturating_mul(self.period))
    }

    /// Grants CPU time starting at `now`.
    pub(crate) fn grant(&mut self, now: u64) -> Option<Grant> {
        self.refill(now);
        if self.left <= 0 {
            return None;
        }
        let ticks = self.left.unsigned_abs().min((self.period / GRANTS).max(1)).min(self.end - now);
        self.left -= ticks as i64;
        Some(Grant { from: now, until: now + ticks, period_end: self.end })
    }

    /// A grant of no time.
    pub(crate) fn empty_grant(&self, now: u64) -> Grant {
        Grant { from: now, until: now, period_end: self.end }
    }

    /// Settles a grant that is no longer in use: refunds the rest, or charges the overrun.
    pub(crate) fn settle(&mut self, grant: Grant, now: u64) {
        let over = i64::try_from(now.max(grant.from).abs_diff(grant.until)).unwrap_or(i64::MAX);
        if now > grant.until {
            self.left = self.left.saturating_sub(over);
        } else if self.end == grant.period_end {
            self.left = self.left.saturating_add(over);
        }
    }
}
