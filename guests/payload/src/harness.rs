//! The test harness: runs tests by name, prints what came of them, and ends the guest.

use core::fmt::{self, Write};

use crate::entry::Entry;
use crate::{console, machine, println, psci};

/// The status of a guest that could not go on.
const DIED: u32 = 2;

/// What a test ends with.
pub type Outcome = Result<(), Fail>;

/// Why a test did not pass.
#[derive(Clone, Copy)]
pub struct Fail {
    text: [u8; 120],
    length: u8,
    skipped: bool,
}

impl Fail {
    /// A failure with its reason; what is longer than a line is cut.
    pub fn new(reason: fmt::Arguments) -> Self {
        let mut fail = Self { text: [0; 120], length: 0, skipped: false };
        // An error means that the text was cut.
        let _ = fail.write_fmt(reason);
        fail
    }

    /// Not a failure: the machine lacks what the test needs.
    pub fn skip(reason: fmt::Arguments) -> Self {
        Self { skipped: true, ..Self::new(reason) }
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
        // Only the last character can be cut in two.
        let text = &self.text[..usize::from(self.length)];
        formatter.write_str(text.utf8_chunks().next().map_or("", |chunk| chunk.valid()))
    }
}

/// Ends the test as failed unless a condition holds: `check!(a < b, "a is {a}")`.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::harness::Fail::new(format_args!($($reason)+)));
        }
    };
}

/// Ends the test as failed unless two numbers are equal: `check_eq!(got, wanted, "the thing")`.
#[macro_export]
macro_rules! check_eq {
    ($got:expr, $wanted:expr, $($what:tt)+) => {
        match ($got, $wanted) {
            (got, wanted) => if got != wanted {
                return Err($crate::harness::Fail::new(format_args!(
                    "{} is {got:#x}, expected {wanted:#x}", format_args!($($what)+)
                )));
            }
        }
    };
}

/// Ends the test: the machine lacks what it needs.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => { return Err($crate::harness::Fail::skip(format_args!($($reason)+))) };
}

/// One test: its name, and the function.
pub type Test = (&'static str, fn() -> Outcome);

/// Counts and prints results. Boot argument `only=NAME` leaves only the tests whose names contain NAME.
pub struct Harness {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Harness {
    /// Starts a suite.
    pub fn new(name: &str, entry: &Entry) -> Self {
        let on = if machine::is_stile() { ", a VM of Stile" } else { "" };
        println!("suite {name}: {} CPUs, {} MiB{on}", machine::cpus(), {
            let ram = machine::ram();
            (ram.end - ram.start) >> 20
        });
        let mut harness = Self { passed: 0, failed: 0, skipped: 0 };
        harness.record(
            "entry_state",
            if entry.is_clean() {
                Ok(())
            } else {
                Err(Fail::new(format_args!(
                    "SCTLR_EL1 {:#x} DAIF {:#x} CurrentEL {:#x} SPSel {}",
                    entry.sctlr, entry.daif, entry.current_el, entry.spsel
                )))
            },
        );
        harness
    }

    /// Runs tests in order, `before` each of them.
    pub fn run(&mut self, before: fn(), tests: &[Test]) {
        let only = machine::text("only").unwrap_or("");
        for (name, test) in tests {
            if name.contains(only) {
                before();
                self.record(name, test());
            }
        }
    }

    /// Counts and prints one result.
    pub fn record(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("PASS {name}");
            }
            Err(reason) if reason.skipped => {
                self.skipped += 1;
                println!("SKIP {name}: {reason}");
            }
            Err(reason) => {
                self.failed += 1;
                println!("FAIL {name}: {reason}");
            }
        }
    }

    /// Prints the sum and returns the status. 0: no test failed; 1: some did.
    pub fn sum(self) -> u32 {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        u32::from(self.failed > 0)
    }

    /// Prints sum and status, and powers the machine off.
    pub fn end(self) -> ! {
        exit(self.sum())
    }
}

/// Prints the status and powers the machine off.
pub fn exit(status: u32) -> ! {
    println!("EXIT: STATUS={status}");
    psci::system_off()
}

/// The end of a guest that can't go on.
pub fn die(reason: &str) -> ! {
    console::seize();
    println!("FAIL {reason}");
    exit(DIED)
}

#[panic_handler]
fn panic(information: &core::panic::PanicInfo) -> ! {
    console::seize();
    println!("{information}");
    die("panic")
}

/// A list of [`Test`]s, each named as its function: `tests![first, second]`.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test as fn() -> $crate::harness::Outcome)),*] };
}
