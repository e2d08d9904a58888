#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

pub mod page;
pub mod tables;

/// Linear address of the page of the physical APIC's registers in the gate view, the only data there. Its bytes
/// are harmless where they are decoded as instructions (`F3 CC CC`), and 64-bit code alone can form it.
pub const APIC_LINEAR: u64 = 0xffff_ffff_cccc_f000;
