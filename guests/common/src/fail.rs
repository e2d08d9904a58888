//! Test outcomes.

use core::fmt::{self, Write};

/// The outcome of a test.
pub type Outcome = Result<(), Fail>;

/// Reason for which a test failed or was skipped.
#[derive(Clone, Copy)]
pub struct Fail {
    text: [u8; 120],
    length: u8,
    skipped: bool,
}

impl Fail {
    /// A failure with its reason, truncated to a line.
    pub fn new(reason: fmt::Arguments) -> Self {
        let mut fail = Self { text: [0; 120], length: 0, skipped: false };
        // An error means that the text was cut.
        let _ = fail.write_fmt(reason);
        fail
    }

    /// A skipped test: the machine lacks a requirement.
    pub fn skip(reason: fmt::Arguments) -> Self {
        Self { skipped: true, ..Self::new(reason) }
    }

    /// Whether the test was skipped.
    pub const fn is_skip(&self) -> bool {
        self.skipped
    }
}

impl Write for Fail {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.text[usize::from(self.length)..];
        let length = text.len().min(free.len());
        free[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length as u8;
        if length == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        // Only the last character can be truncated.
        let text = &self.text[..usize::from(self.length)];
        formatter.write_str(text.utf8_chunks().next().map_or("", |chunk| chunk.valid()))
    }
}

/// Fails the test unless a condition holds: `check!(a < b, "a is {a}")`.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::fail::Fail::new(format_args!($($reason)+)));
        }
    };
}

/// Fails the test unless two numbers are equal: `check_eq!(got, wanted, "the thing")`.
#[macro_export]
macro_rules! check_eq {
    ($got:expr, $wanted:expr, $($what:tt)+) => {
        match ($got, $wanted) {
            (got, wanted) => if got != wanted {
                return Err($crate::fail::Fail::new(format_args!(
                    "{} is {got:#x}, expected {wanted:#x}", format_args!($($what)+)
                )));
            }
        }
    };
}

/// Skips the test: the machine lacks a requirement.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => { return Err($crate::fail::Fail::skip(format_args!($($reason)+))) };
}
