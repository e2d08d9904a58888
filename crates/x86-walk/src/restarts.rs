//! A bound on the restarts of all walks of one exit.

use core::cell::Cell;

/// The restarts that are left to the walks of one exit, whose entries another vCPU changes before their flags are set.
///
/// An exit makes up to some 60 walks in an L2's memory, each of which walks L1's tables for each entry. Each walk bounds
/// its own restarts ([`translate`](crate::translate)), but if all of them restarted, the exit would take too long.
#[derive(Debug)]
pub struct Restarts(Cell<u8>);

impl Restarts {
    /// Restarts of all walks of an exit.
    pub const MOST: u8 = 16;

    /// Creates the count for an exit.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "one for each exit")]
    pub const fn new() -> Self {
        Self(Cell::new(Self::MOST))
    }

    /// Takes the result of a compare-and-exchange that sets flags, and returns what the walk is told. A failure restarts
    /// the walk. Once no restarts are left, it counts as success: the guest gets the translation without the flags.
    pub fn check(&self, is_done: bool) -> bool {
        if is_done {
            return true;
        }
        match self.0.get().checked_sub(1) {
            Some(left) => {
                self.0.set(left);
                false
            }
            None => true,
        }
    }
}
