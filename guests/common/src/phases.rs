//! The scheme of a hostile guest: phases follow each other, each with random numbers of its own, and after each the guest's memory must be as
//! it was.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::canary;
use crate::fail::Outcome;
use crate::random::{Random, mix};

/// One thing that the guest tries: its name, and the function. What an access does or returns is mostly not checked: it must only come
/// back, with or without an exception.
pub type Phase = (&'static str, fn() -> Outcome);

/// What the scheme needs of a machine.
pub trait Machine {
    /// The number of this CPU.
    fn this() -> usize;
    /// How many there are.
    fn cpus() -> usize;
    /// Memory that nothing else uses. Asked for by one CPU at a time.
    fn canary() -> &'static mut [u64];
    /// Takes all CPUs and devices back to a state in which the guest can go on.
    fn restore() -> Outcome;
    /// Prints a line.
    fn say(line: fmt::Arguments<'_>);
}

/// Which phases run, and how often.
pub struct Plan {
    /// The first round's seed.
    pub seed: u64,
    /// Each round has the next seed.
    pub rounds: u64,
    /// Phases whose names contain this.
    pub only: &'static str,
}

/// The seed of the phase that runs.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Random numbers of this CPU for this phase.
pub fn random<M: Machine>() -> Random {
    Random::new(mix(SEED.load(Acquire) << 8 | M::this() as u64))
}

/// This CPU's share of a number of attempts.
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
