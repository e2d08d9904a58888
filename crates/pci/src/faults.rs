//! Accounting of a function's faults in the IOMMU. They are reported once for each page and direction, until there are too
//! many: then the function is cut off.

/// Number of reported faults at which a function is cut off.
pub const MOST_REPORTS: u32 = 8;
/// Number of faults, reported or not, at which a function is cut off. A single transfer may fault every few bytes.
pub const MOST_FAULTS: u32 = 4096;

/// Direction of a function's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From memory.
    Read,
    /// To memory.
    Write,
}

/// Response to a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Report it.
    pub report: bool,
    /// Cut the function off: from now on its transactions are aborted without events.
    pub cut_off: bool,
}

/// The faults of a function.
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

    /// Counts a fault at an address, in a direction if the IOMMU knows it.
    pub fn count(&mut self, address: u64, access: Option<Access>) -> Verdict {
        let place = address & !0xfff | u64::from(access == Some(Access::Write));
        if self.faults >= MOST_FAULTS || self.reports >= MOST_REPORTS {
            // The IOMMU recorded the event before the function was cut off.
            return Verdict { report: false, cut_off: false };
        }
        let report = self.last != place;
        self.last = place;
        self.faults += 1;
        self.reports += report as u32;
        Verdict { report, cut_off: self.faults == MOST_FAULTS || self.reports == MOST_REPORTS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_function_is_cut_off_after_some_faults() {
        // Endless faults of one page: one report, then the cut-off.
        let mut faults = Faults::NONE;
        let verdicts: Vec<_> = (0..2 * MOST_FAULTS).map(|word| faults.count(0x1000 + u64::from(word % 4096), None)).collect();
        assert_eq!(verdicts.iter().filter(|verdict| verdict.report).count(), 1);
        assert_eq!(verdicts.iter().position(|verdict| verdict.cut_off), Some(MOST_FAULTS as usize - 1));
        assert_eq!(verdicts.iter().filter(|verdict| verdict.cut_off).count(), 1, "an end is one");
        // Another page each time.
        let mut faults = Faults::NONE;
        let verdicts: Vec<_> = (0..100).map(|page| faults.count(page << 12, Some(Access::Read))).collect();
        assert_eq!(verdicts.iter().filter(|verdict| verdict.report).count(), MOST_REPORTS as usize);
        assert_eq!(verdicts.iter().position(|verdict| verdict.cut_off), Some(MOST_REPORTS as usize - 1));
        // A read and a write of a page, each reported once.
        let mut faults = Faults::NONE;
        let verdicts = [Access::Read, Access::Read, Access::Write, Access::Write].map(|access| faults.count(0x1000, Some(access)).report);
        assert_eq!(verdicts, [true, false, true, false]);
    }
}
