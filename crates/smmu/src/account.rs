//! Accounting of a stream's faults: they are reported, once for each page and direction, until the stream is cut off.

/// Reports of a stream's faults until it is cut off.
pub const MOST_REPORTS: u32 = 8;
/// Its faults until then, reported or not: a transfer has one for each few bytes.
pub const MOST_FAULTS: u32 = 4096;

/// The consequences of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Report it.
    pub report: bool,
    /// It was the last one: have the stream abort, without events.
    pub cut_off: bool,
}

/// The faults of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    faults: u32,
    reports: u32,
    /// Page and direction of the last one.
    last: u64,
}

impl Faults {
    /// None yet.
    pub const NONE: Faults = Faults { faults: 0, reports: 0, last: u64::MAX };

    /// Counts a fault at a page and direction.
    pub const fn count(&mut self, place: u64) -> Verdict {
        if self.faults >= MOST_FAULTS || self.reports >= MOST_REPORTS {
            // Recorded before it was cut off.
            return Verdict { report: false, cut_off: false };
        }
        let report = self.last != place;
        self.last = place;
        self.faults += 1;
        self.reports += report as u32;
        Verdict { report, cut_off: self.faults == MOST_FAULTS || self.reports == MOST_REPORTS }
    }
}
