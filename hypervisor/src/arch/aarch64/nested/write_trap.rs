//! The trap of virtual EL2's writes of MDSCR_EL1, and when it is worth its cost.

/// Runs of guests with no write of KDE between them that turn the trap off.
const QUIET: u8 = 4;

/// The trap of virtual EL2's writes.
#[derive(Clone, Copy)]
pub struct WriteTrap {
    is_on: bool,
    /// Runs of guests since the last write of KDE.
    quiet: u8,
}

impl WriteTrap {
    /// Whether the CPU is to have it while virtual EL2 runs.
    pub fn is_on(self) -> bool {
        self.is_on
    }

    /// A trap that is on or off from now on.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, quiet: 0 }
    }

    /// A write trapped, of a value with or without KDE. `has_run`: a guest has run since the last one. Returns whether the trap is to be turned off.
    pub fn count(&mut self, has_kde: bool, has_run: bool) -> bool {
        if has_kde {
            self.quiet = 0;
            return false;
        }
        self.quiet += u8::from(has_run);
        has_run && self.quiet >= QUIET
    }
}
