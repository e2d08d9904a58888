//! What a PC's firmware and boot loader say about the machine: ACPI tables ([`acpi`]) and Multiboot information ([`multiboot`]).
//!
//! Both lie in physical memory, which is reached through [`Memory`]. Nothing is believed that could make the reader go wrong: lengths are
//! checked before they are followed, and what is malformed is an error or is left out. (The crate `acpi` needs an unstable compiler.)
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod acpi;
mod bytes;
pub mod multiboot;

/// Physical memory, as the reader of tables sees it.
pub trait Memory {
    /// `len` bytes from a physical address on; nothing if not all of them can be read.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}
