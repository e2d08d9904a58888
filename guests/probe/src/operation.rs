//! An operation, named after common micro-benchmarks; each architecture has its own.

use crate::arch::Platform;

/// An operation.
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Its requirements.
    pub needs: Needs,
    /// Divisor of the number of iterations, for operations that are slow or wait.
    pub divisor: u64,
    /// Runs it a number of times and returns the total ticks.
    pub run: fn(&Platform, u64) -> u64,
    /// Subtracts the measurement overhead.
    pub net: fn(u64, u64) -> u64,
}

/// The virtual CPUs that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// One.
    One,
    /// Two that run at the same time.
    Two,
    /// Two that share a physical CPU. The guest can't detect this, so it must be selected by name.
    Shared,
    /// As many as there are, which must be selected by name.
    All,
}
