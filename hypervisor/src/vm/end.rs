//! How a VM ends.

use stile_wire::Crash;

/// How a VM ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its guest, or the operator, turned it off.
    Off,
    /// Its guest ended it, and says how it went: 0 is well. (Not every machine has a way to say so.)
    #[allow(dead_code)]
    Exit(u32),
    /// Its guest reset it.
    Reset,
    /// The operator reset it, which starts it anew in any case.
    Restart,
    /// It can't go on.
    Crash(Crash),
}

impl End {
    /// Whether the VM is to start anew.
    pub fn is_reset(self) -> bool {
        matches!(self, End::Reset | End::Restart)
    }
}
