//! What a PC guest finds in memory as it starts, in the place of firmware and boot loader: ACPI tables ([`acpi`]), and the
//! information of the ways to start: Linux's 64-bit boot protocol ([`linux`]), Multiboot ([`multiboot`]) and PVH ([`pvh`]).
//!
//! Each builder returns bytes that are to be placed at the guest-physical address that it was given.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acpi;
mod bytes;
pub mod linux;
mod memory;
pub mod multiboot;
pub mod pvh;

pub use memory::{Kind, Module, Range};
