//! The test harness: runs tests by name, prints their outcomes, and ends the guest.

pub use common::fail::{Fail, Outcome};

use crate::entry::Entry;
use crate::{console, machine, println, psci};

/// The exit status of a guest that can't continue.
const DIED: u32 = 2;

/// A test: its name, and the function.
pub type Test = (&'static str, fn() -> Outcome);

/// Counts and prints outcomes. With the boot argument `only=NAME`, runs only tests whose names contain NAME.
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

    /// Runs tests in order, calling `before` before each.
    pub fn run(&mut self, before: fn(), tests: &[Test]) {
        let only = machine::text("only").unwrap_or("");
        for (name, test) in tests {
            if name.contains(only) {
                before();
                self.record(name, test());
            }
        }
    }

    /// Counts and prints an outcome.
    pub fn record(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("PASS {name}");
            }
            Err(reason) if reason.is_skip() => {
                self.skipped += 1;
                println!("SKIP {name}: {reason}");
            }
            Err(reason) => {
                self.failed += 1;
                println!("FAIL {name}: {reason}");
            }
        }
    }

    /// Prints the summary and returns the status. 0: no test failed; 1: some failed.
    pub fn sum(self) -> u32 {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        u32::from(self.failed > 0)
    }

    /// Prints summary and status, and powers off.
    pub fn end(self) -> ! {
        exit(self.sum())
    }
}

/// Prints the status and powers off.
pub fn exit(status: u32) -> ! {
    println!("EXIT: STATUS={status}");
    psci::system_off()
}

/// Ends a guest that can't continue.
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

/// A list of [`Test`]s, named after their functions: `tests![first, second]`.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test as fn() -> $crate::harness::Outcome)),*] };
}
