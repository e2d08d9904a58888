//! Parsers for a PC's ACPI tables ([`acpi`]) and Multiboot information ([`multiboot`]).
//!
//! Both lie in physical memory, accessed through [`Memory`], and are untrusted: lengths are checked before use, and malformed entries
//! are errors or are skipped. (The crate `acpi` is not used because it needs an unstable compiler.)
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod acpi;
mod bytes;
pub mod multiboot;

/// Read access to physical memory.
pub trait Memory {
    /// Returns `len` bytes at a physical address, or `None` if any of them is not readable memory.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}
