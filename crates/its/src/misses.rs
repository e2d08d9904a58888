//! Limits how often messages of a VM's functions interrupt CPUs where the VM does not run: other VMs pay for those interrupts.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of free misses in a period for a VM, independent of the number of its LPIs.
pub const FREE: u32 = 64;
/// As many misses move a single LPI to a CPU where its VM runs.
pub const TO_MOVE: u32 = 8;

/// Misses of a VM: LPIs taken on a CPU that does not run their target vCPU.
///
/// Updates of several CPUs may be lost: each then has a few more misses.
#[derive(Debug, Default)]
pub struct Misses {
    /// When the period began, in ticks.
    began: AtomicU64,
    count: AtomicU32,
}

/// Answer to an LPI that missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Deliver it, and leave it where it is.
    Nothing,
    /// Retarget the LPI to the CPU where a vCPU of its VM runs.
    Move,
    /// Disable the LPI until a vCPU of its VM runs.
    Hold,
}

impl Misses {
    /// None.
    pub const fn new() -> Self {
        Self { began: AtomicU64::new(0), count: AtomicU32::new(0) }
    }

    /// Handles a miss of an LPI that missed `of_lpi` times before. `runs`: a vCPU of its VM runs on another CPU.
    /// `period`, in ticks: a time slice.
    pub fn add(&self, of_lpi: u32, runs: bool, now: u64, period: u64) -> Action {
        if now.wrapping_sub(self.began.load(Ordering::Relaxed)) >= period {
            self.began.store(now, Ordering::Relaxed);
            self.count.store(0, Ordering::Relaxed);
        }
        let count = self.count.load(Ordering::Relaxed).saturating_add(1);
        self.count.store(count, Ordering::Relaxed);
        let is_over = count > FREE;
        match runs {
            true if is_over || (of_lpi + 1).is_multiple_of(TO_MOVE) => Action::Move,
            false if is_over => Action::Hold,
            _ => Action::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::{Arrival, Route};

    const PERIOD: u64 = 1_000_000;

    /// Sends LPIs continuously, round-robin, to a CPU where their VM, number 3, does not run. They lead to LPI `target` of the VM. Returns
    /// the number taken in a period.
    fn storm(lpis: usize, runs: bool, target: u16) -> u32 {
        let misses = Misses::new();
        let mut here = vec![true; lpis];
        let mut of_lpi = vec![0u32; lpis];
        let mut came = 0;
        for time in 0..PERIOD / 100 {
            let lpi = time as usize % lpis;
            if here[lpi] {
                came += 1;
                if Route::new(3, target).arrive(Some(2)) != Arrival::Foreign {
                    continue;
                }
                here[lpi] = misses.add(of_lpi[lpi], runs, time * 100, PERIOD) == Action::Nothing;
                of_lpi[lpi] += 1;
            }
        }
        came
    }

    #[test]
    fn a_storm_costs_others_a_bounded_number_of_interrupts() {
        for lpis in [1, 2, 32, 256] {
            // Also if the VM's ITS translates the events to nothing.
            for (runs, target) in [(false, 8192), (true, 8192), (false, 0), (true, 0)] {
                let came = storm(lpis, runs, target);
                assert!(came <= FREE + lpis as u32, "{came} interrupts of {lpis} LPIs, runs: {runs}, to {target}");
            }
        }
        assert_eq!(storm(1, true, 8192), TO_MOVE);
        assert_eq!(storm(1, false, 8192), FREE + 1);
    }

    #[test]
    fn each_period_begins_anew() {
        let misses = Misses::new();
        for period in 0..3 {
            let now = period * PERIOD;
            for n in 0..FREE {
                assert_eq!(misses.add(n, false, now, PERIOD), Action::Nothing);
            }
            assert_eq!(misses.add(FREE, false, now + PERIOD - 1, PERIOD), Action::Hold);
        }
        // Also if the counter jumps back.
        assert_eq!(misses.add(0, false, 5, PERIOD), Action::Nothing);
    }
}
