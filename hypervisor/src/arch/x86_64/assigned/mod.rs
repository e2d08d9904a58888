//! PCI functions owned by VMs: how AMD's IOMMU confines them.

pub mod dma;
pub mod failure;
pub mod faults;
pub mod remapping;
