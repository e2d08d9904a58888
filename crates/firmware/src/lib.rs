//! Parsers for what firmware and boot loaders say of the machine: an Arm board's device tree ([`device_tree`],
//! [`salvage`], [`nodes`]), a PC's ACPI tables ([`acpi`]) and Multiboot information ([`multiboot`], [`multiboot2`]), UEFI's memory map
//! ([`efi`]) and frame buffers ([`frame_buffer`]), a PC's RAM by these maps ([`ram`]), its BIOS's map ([`e820`]), memory limited
//! to such maps ([`within`]), serial ports ([`serial`], [`serial_tables`]), nodes of memory and CPUs ([`numa`]), PCI configuration space
//! ([`mcfg`]) and memory ([`root_bridge`]), and IOMMUs ([`ivrs`], [`iort`]). UEFI's runtime services ([`runtime`]) keep the figures of a
//! machine that measures ([`figures`]).
//!
//! All lie in physical memory and are untrusted: lengths are checked before use, and malformed entries are errors or
//! are skipped. (The crate `acpi` is not used because it needs an unstable compiler.)
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod acpi;
pub mod arm_pci;
pub mod arm_tables;
pub mod boot_files;
mod bytes;
pub mod configuration;
pub mod described;
pub mod device_tree;
pub mod e820;
pub mod efi;
pub mod figures;
#[cfg(test)]
mod flat;
pub mod frame_buffer;
pub mod gicv2;
pub mod iort;
pub mod ivrs;
pub mod mcfg;
pub mod multiboot;
pub mod multiboot2;
pub mod nodes;
pub mod numa;
pub mod pci_map;
pub mod ram;
pub mod root_bridge;
pub mod runtime;
pub mod salvage;
pub mod serial;
pub mod serial_tables;
pub mod srat;
mod table;
pub mod tree_writer;
pub mod within;

/// Maximum number of CPUs that the parsers return.
pub const MAX_CPUS: usize = 512;

/// Read access to physical memory.
pub trait Memory {
    /// Returns `len` bytes at a physical address, or `None` if any of them is not readable memory.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}
