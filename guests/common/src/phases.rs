//! The scheme of a hostile guest: a sequence of phases, each with its own random numbers, after each of which
//! the guest's memory must be unchanged.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::canary;
use crate::fail::Outcome;
use crate::random::{Random, mix};

/// A phase: its name, and the function. Results of accesses are mostly unchecked: an access must only return,
/// with or without an exception.
pub type Phase = (&'static str, fn() -> Outcome);

/// Requirements on a machine.
pub trait Machine {
    /// The number of this CPU.
    fn this() -> usize;
    /// The number of CPUs.
    fn cpus() -> usize;
    /// Memory reserved for the canary. Requested by one CPU at a time.
    fn canary() -> &'static mut [u64];
    /// Restores all CPUs and devices to a usable state.
    fn restore() -> Outcome;
    /// Prints a line.
    fn say(line: fmt::Arguments<'_>);
}

/// The selection of phases and rounds.
pub struct Plan {
    /// The first round's seed.
    pub seed: u64,
    /// Number of rounds; each has the next seed.
    pub rounds: u64,
    /// Runs the phases whose names contain this.
    pub only: &'static str,
}

/// The seed of the current phase.
static SEED: AtomicU64 = AtomicU64::new(0);

/// This CPU's random numbers for the current phase.
pub fn random<M: Machine>() -> Random {
    Random::new(mix(SEED.load(Acquire) << 8 | M::this() as u64))
}

/// This CPU's part of a number of attempts.
pub fn share<M: Machine>(attempts: usize) -> core::ops::Range<usize> {
    0..attempts.div_ceil(M::cpus())
}

/// Runs the phases.
pub fn run<M: Machine>(phases: &[Phase], plan: &Plan) -> Outcome {
    canary::fill(M::canary(), 0);
    for seed in plan.seed..plan.seed + plan.rounds {
        for (number, (name, phase)) in phases.iter().enumerate() {
            if !name.contains(plan.only) {
                continue;
            }
            M::say(format_args!("hostile: seed {seed} phase {name}"));
            SEED.store(seed << 8 | number as u64, Release);
            M::restore()?;
            let outcome = phase();
            M::restore()?;
            outcome?;
            canary::check(M::canary(), 0)?;
        }
    }
    Ok(())
}
