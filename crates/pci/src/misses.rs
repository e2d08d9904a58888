//! Limits how often messages of a VM's functions interrupt CPUs where the VM does not run: other VMs pay for those interrupts.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of free misses in a period for a VM, independent of the number of its vectors.
pub const FREE: u32 = 64;
/// A message to as many vCPUs counts as one more miss: each of them takes time.
pub const TO_COUNT: u32 = 8;
/// As many misses move a single vector to a CPU where its VM runs.
pub const TO_MOVE: u32 = 8;

/// Misses of a VM: messages taken on a CPU that does not run their target vCPU.
///
/// Updates of several CPUs may be lost: each then has a few more misses.
#[derive(Debug, Default)]
pub struct Misses {
    /// Start of the period, in ticks.
    began: AtomicU64,
    count: AtomicU32,
}

/// Answer to a message that missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Deliver it, and leave it where it is.
    Nothing,
    /// Retarget the vector to the CPU where a vCPU of its VM runs.
    Move,
    /// Disable the vector until a vCPU of its VM runs.
    Hold,
}

impl Misses {
    /// None.
    pub const fn new() -> Self {
        Self { began: AtomicU64::new(0), count: AtomicU32::new(0) }
    }

    /// Handles a miss of a vector that missed `of_vector` times before. `vcpus`: number of vCPUs that its message addresses.
    /// `runs`: a vCPU of its VM runs on another CPU. `period`, in ticks: a time slice.
    pub fn add(&self, of_vector: u32, vcpus: u32, runs: bool, now: u64, period: u64) -> Action {
        if now.wrapping_sub(self.began.load(Ordering::Relaxed)) >= period {
            self.began.store(now, Ordering::Relaxed);
            self.count.store(0, Ordering::Relaxed);
        }
        let count = self.count.load(Ordering::Relaxed).saturating_add(1 + vcpus / TO_COUNT);
        self.count.store(count, Ordering::Relaxed);
        let is_over = count > FREE;
        match runs {
            true if is_over || (of_vector + 1).is_multiple_of(TO_MOVE) => Action::Move,
            false if is_over => Action::Hold,
            _ => Action::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    const PERIOD: u64 = 1_000_000;

    /// Sends messages continuously, round-robin, to a CPU where their VM does not run. Returns the number taken in a period.
    fn storm(vectors: usize, vcpus: u32, runs: bool) -> u32 {
        let misses = Misses::new();
        let mut here = vec![true; vectors];
        let mut of_vector = vec![0u32; vectors];
        let mut came = 0;
        for time in 0..PERIOD / 100 {
            let vector = time as usize % vectors;
            if here[vector] {
                came += 1;
                here[vector] = misses.add(of_vector[vector], vcpus, runs, time * 100, PERIOD) == Action::Nothing;
                of_vector[vector] += 1;
            }
        }
        came
    }

    #[test]
    fn a_storm_costs_others_a_bounded_number_of_interrupts() {
        for vectors in [1, 2, 32, 256] {
            for runs in [false, true] {
                let came = storm(vectors, 1, runs);
                assert!(came <= FREE + vectors as u32, "{came} interrupts of {vectors} messages, runs: {runs}");
            }
        }
        assert_eq!(storm(1, 1, true), TO_MOVE);
        assert_eq!(storm(1, 1, false), FREE + 1);
    }

    #[test]
    fn messages_to_many_vcpus_are_fewer() {
        for vcpus in [1, 7, 8, 64, 255, 256] {
            let came = storm(1, vcpus, false);
            assert!(came == FREE / (1 + vcpus / TO_COUNT) + 1, "{came} messages to {vcpus} vCPUs");
            assert!(came * vcpus <= (FREE + 2) * TO_COUNT + vcpus, "{came} messages to {vcpus} vCPUs");
        }
    }

    #[test]
    fn each_period_begins_anew() {
        let misses = Misses::new();
        for period in 0..3 {
            let now = period * PERIOD;
            for n in 0..FREE {
                assert_eq!(misses.add(n, 1, false, now, PERIOD), Action::Nothing);
            }
            assert_eq!(misses.add(FREE, 1, false, now + PERIOD - 1, PERIOD), Action::Hold);
        }
        // Also if the counter jumps back.
        assert_eq!(misses.add(0, 1, false, 5, PERIOD), Action::Nothing);
    }
}
