//! Accounting of a stream's faults. They are reported once for each page and direction, until there are too many: then
//! the stream is cut off.

/// Number of reported faults at which a stream is cut off.
pub const MOST_REPORTS: u32 = 8;
/// Number of faults, reported or not, at which a stream is cut off. A single transfer may fault every few bytes.
pub const MOST_FAULTS: u32 = 4096;

/// Response to a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Report it.
    pub report: bool,
    /// Cut the stream off: from now on it aborts transactions without recording events.
    pub cut_off: bool,
}

/// The faults of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    faults: u32,
    reports: u32,
    /// Page and direction of the last fault.
    last: u64,
}

impl Faults {
    /// None yet.
    pub const NONE: Faults = Faults { faults: 0, reports: 0, last: u64::MAX };

    /// Counts a fault. `place` identifies its page and direction.
    pub const fn count(&mut self, place: u64) -> Verdict {
        if self.faults >= MOST_FAULTS || self.reports >= MOST_REPORTS {
            // The SMMU recorded the event before the stream was cut off.
            return Verdict { report: false, cut_off: false };
        }
        let report = self.last != place;
        self.last = place;
        self.faults += 1;
        self.reports += report as u32;
        Verdict { report, cut_off: self.faults == MOST_FAULTS || self.reports == MOST_REPORTS }
    }
}
