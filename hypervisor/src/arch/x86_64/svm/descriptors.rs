//! State of direct IPIs: absent.

use core::sync::atomic::AtomicBool;

use stile_blob::TimerAccess;

/// No VM has them.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// Means of direct IPIs: there are none.
pub enum Direct {}

impl Direct {
    /// The features in CPUID.
    pub fn features(&self, _timer: TimerAccess) -> u32 {
        match *self {}
    }
}

/// A vCPU does not send IPIs directly.
pub struct Sending;

impl Sending {
    /// Disabled.
    pub const fn new() -> Sending {
        Sending
    }

    /// Stays disabled.
    pub fn reset(&self) {}

    /// Expiries of its timer exit.
    pub fn has_timer(&self) -> bool {
        false
    }
}
