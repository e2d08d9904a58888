//! Failures that a stall of the host may have caused.

/// Parts of reports that no stall of the host explains: Stile or a guest found a fault.
const FAULTS: [&str; 6] = ["panic: ", "panicked", "Kernel panic", "FAIL", "another difference", "exit status 101"];

/// Whether the host may have caused a failure of a test in an emulator, by a stall.
pub fn may_be_a_stall(report: &str) -> bool {
    !FAULTS.iter().any(|fault| report.contains(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_no_stalls() {
        assert!(may_be_a_stall("the output never had \"snapshot: hold\"\ntime-out after 1267 s\nexit status 143, expected 0"));
        assert!(!may_be_a_stall("exit status 101, expected 0"));
        assert!(!may_be_a_stall("time-out after 600 s\n--- standard output, its end:\nFAIL of_l2: it fired again"));
        assert!(!may_be_a_stall("standard error has another difference in it: exits counted 2, exits taken 3, difference 1"));
    }
}
