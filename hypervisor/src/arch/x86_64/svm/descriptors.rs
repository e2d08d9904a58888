//! State of direct IPIs: absent.

use core::sync::atomic::AtomicBool;

/// No VM has them.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// Means of direct IPIs: there are none.
pub enum Direct {}

impl Direct {
    /// The feature in CPUID.
    pub fn feature(&self) -> u32 {
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
}
