//! Ways for a VM to end.

use stile_wire::Crash;

/// Way for a VM to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Power-off by its guest or the operator.
    Off,
    /// Exit by its guest with a status, 0 for success.
    #[allow(dead_code, reason = "not every machine has a device for it")]
    Exit(u32),
    /// Reset by its guest.
    Reset,
    /// Reset by the operator, which restarts the VM whatever its configuration.
    Restart,
    /// Unrecoverable error.
    Crash(Crash),
}

impl End {
    /// Whether the VM restarts.
    pub fn is_reset(self) -> bool {
        matches!(self, End::Reset | End::Restart)
    }
}
