//! Registers of a VM to which stores are frequent.

use crate::served::Served;

/// Registers to which stores are found without a search of the bus. Exits of VMs that have none take one test for it.
#[derive(Clone, Copy)]
pub enum Doorbells {
    /// The VM has none.
    None,
    /// GICD_SGIR of a GICv2.
    Sgis,
    /// Those of devices that the VM serves, or that others serve it.
    Served(&'static Served),
}
