//! The tests' model: a machine with a reference GIC beside the engine.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod cpu;
pub mod gic;
pub mod hostile;
pub mod interface;
pub mod machine;
pub mod operations;
pub mod physical;

/// The physical PPIs of the tests' machine: the EL1 physical and the virtual timer.
pub const HW_PPIS: [u32; 2] = [27, 30];

/// An SGI that the hypervisor keeps for itself where interrupts are direct.
pub const RESERVED_SGI: u32 = 15;

/// [`HW_PPIS`] as a mask.
pub const HW_PPI_MASK: u32 = 1 << 27 | 1 << 30;

/// `few` cases by default, or PROPTEST_CASES if it is set.
pub fn cases(few: u32) -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    proptest::test_runner::Config { cases: cases.unwrap_or(few), failure_persistence: None, ..Default::default() }
}
