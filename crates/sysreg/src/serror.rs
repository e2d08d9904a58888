//! Severity of a physical SError for the vCPU that caused it, by its syndrome: that of the exception, or of `DISR_EL1`, which has the
//! same fields ("ISS encoding for an SError exception" and "DISR_EL1" in the Arm ARM).

/// Response to an SError.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Corrected, or restartable: no state is lost.
    Harmless,
    /// The vCPU's state is lost, or unknown: inject a virtual SError.
    Contained,
    /// It may have spread anywhere: no VM can be trusted any more.
    Uncontainable,
}

/// `DISR_EL1.A`: an SError was deferred by an error synchronization barrier.
pub const DEFERRED: u64 = 1 << 31;

/// IDS: the rest is the implementation's own.
const IDS: u64 = 1 << 24;
/// DFSC: "Asynchronous SError exception", the one value with which AET means something.
const ASYNCHRONOUS: u64 = 0b01_0001;

/// The severity of an SError with this syndrome, on a CPU with FEAT_RAS or without it.
pub const fn severity(syndrome: u64, ras: bool) -> Severity {
    if !ras || syndrome & IDS != 0 || syndrome & 0x3f != ASYNCHRONOUS {
        return Severity::Contained;
    }
    // AET.
    match syndrome >> 10 & 0b111 {
        // UEU, UER: unrecoverable; recoverable, by software that knows what was lost.
        0b001 | 0b011 => Severity::Contained,
        // UEO: restartable. CE: corrected.
        0b010 | 0b110 => Severity::Harmless,
        // UC; reserved values are taken for the worst.
        _ => Severity::Uncontainable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severity_follows_aet() {
        for (aet, expected) in [
            (0, Severity::Uncontainable),
            (1, Severity::Contained),
            (2, Severity::Harmless),
            (3, Severity::Contained),
            (4, Severity::Uncontainable),
            (5, Severity::Uncontainable),
            (6, Severity::Harmless),
            (7, Severity::Uncontainable),
        ] {
            let syndrome = 0x2f << 26 | 1 << 25 | aet << 10 | ASYNCHRONOUS;
            assert_eq!(severity(syndrome, true), expected, "AET {aet}");
            // Deferred, it is the same.
            assert_eq!(severity(DEFERRED | aet << 10 | ASYNCHRONOUS, true), expected, "AET {aet}");
            assert_eq!(severity(syndrome, false), Severity::Contained);
            assert_eq!(severity(syndrome | IDS, true), Severity::Contained);
            // DFSC 0: uncategorized.
            assert_eq!(severity(syndrome & !0x3f, true), Severity::Contained);
        }
    }
}
