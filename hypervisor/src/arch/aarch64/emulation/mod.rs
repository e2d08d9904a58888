//! Device models behind trapped accesses.

pub mod devices;
pub mod flash;
pub mod gic;
pub mod gicv2;
pub mod pci;
pub mod served;
