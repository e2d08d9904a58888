//! A test, and its conditions.

use core::arch::x86_64::__cpuid_count as cpuid;

/// A test: its name, the machines that it applies to, and the function, whose argument is the address of
/// Multiboot's information.
pub type Test = (&'static str, On, fn(u64) -> Result<(), &'static str>);

/// Machines on which a test can pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Every PC, including one without a hypervisor, which validates the test.
    Any,
    /// Stile only: it tests Stile's own devices, or features hidden from guests.
    Stile,
}

/// Whether this runs under a hypervisor; if not, tests of Stile's own features are skipped.
pub fn is_guest() -> bool {
    cpuid(1, 0).ecx & 1 << 31 != 0
}

/// Returns an error unless a condition holds.
macro_rules! check {
    ($condition:expr, $why:literal) => {
        if !$condition {
            return Err($why);
        }
    };
}

pub(crate) use check;
