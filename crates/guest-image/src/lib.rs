//! Initial memory contents of a virtual machine, made from its kernel, initial RAM file system and settings.
//!
//! `stile` makes images with it, and a booting Stile the virtual machines that the boot medium's configuration file changes.
//! Kernels are untrusted input: for any bytes, nothing here panics or allocates more than it was told it may.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bytes;
mod compression;
pub mod domain;
pub mod dtb;
mod elf;
mod elf_file;
pub mod fdt;
pub mod file_type;
pub mod gunzip;
pub mod kernel;
mod kernel_error;
pub mod layout;
pub mod loaded;
pub mod pc;
pub mod pe;
pub mod plan;
pub mod remake;
mod segment;
mod served;

pub use compression::Compression;
pub use kernel::{Format, Kernel, Unpacking};
pub use kernel_error::KernelError;
pub use plan::{Error, Guest, GuestDomain, Plan};
pub use segment::Segment;
