//! The trap of virtual EL2's MDSCR_EL1 writes, and the policy of enabling it.

/// Number of guest entries without a write of KDE after which the trap is disabled.
const QUIET: u8 = 4;

/// The trap of virtual EL2's writes.
#[derive(Clone, Copy)]
pub struct WriteTrap {
    is_on: bool,
    /// Guest entries since the last write of KDE.
    quiet: u8,
}

impl WriteTrap {
    /// Whether the trap is enabled while virtual EL2 runs.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// Creates the trap, enabled or disabled.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, quiet: 0 }
    }

    /// Handles a trapped write, of a value with or without KDE. `has_run`: a guest has run since the previous one.
    /// Returns whether to disable the trap.
    pub fn count(&mut self, has_kde: bool, has_run: bool) -> bool {
        if has_kde {
            self.quiet = 0;
            return false;
        }
        self.quiet += u8::from(has_run);
        has_run && self.quiet >= QUIET
    }
}
