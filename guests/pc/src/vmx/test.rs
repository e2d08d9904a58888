//! A test, and its conditions.

/// A test's result.
pub enum Outcome {
    /// It passes.
    Pass,
    /// The processor lacks what is tested.
    Skip(&'static str),
    /// It fails.
    Fail(&'static str),
}

/// A test.
pub type Test = (&'static str, fn() -> Outcome);

/// Fails unless a condition holds.
macro_rules! check {
    ($condition:expr, $why:literal) => {
        if !$condition {
            return $crate::test::Outcome::Fail($why);
        }
    };
}

/// Fails unless a value is the expected one, and prints both.
macro_rules! same {
    ($found:expr, $expected:expr, $why:literal) => {{
        let (found, expected) = ($found, $expected);
        if found != expected {
            pc::console::println!("{}: {:#x?}, not {:#x?}", $why, found, expected);
            return $crate::test::Outcome::Fail($why);
        }
    }};
}

pub(crate) use {check, same};

/// Whether this runs under a hypervisor.
pub fn is_guest() -> bool {
    core::arch::x86_64::__cpuid_count(1, 0).ecx & 1 << 31 != 0
}
