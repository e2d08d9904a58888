//! Devices that guests reach by accesses that trap.

pub mod devices;
pub mod flash;
pub mod gic;
pub mod pci;
