//! The reasons and static rows of AArch64.
//!
//! A reason is a group of exception classes ("ESR_EL2, EC, bits \[31:26\]" in the Arm Architecture Reference
//! Manual) or an asynchronous physical exception. [`reason::MMIO`] and [`reason::FAULT`] share the class of a
//! data abort from a lower level, because different code handles them.

mod calls;
mod events;
pub mod key;
mod mmio;
mod names;
mod names_el2;
pub mod reason;
mod sysreg;

use crate::catalogue::{Catalogue, RowTable, TableBuilder};

pub use calls::*;
pub use events::*;
pub use mmio::{
    MMIO_CPU_INTERFACE, MMIO_DECODE, MMIO_FLASH, MMIO_ITS, MMIO_MSI_FRAME, MMIO_PCI_CONFIG, MMIO_PCI_MEMORY, MMIO_SERVER,
    MMIO_SERVER_COMPLETION, MMIO_VIRTIO, MMIO_VIRTIO_KICK, gicd, gicr, pl011, pl031,
};
pub use names::name as register_name;
pub use sysreg::*;

static ROWS: RowTable = TableBuilder::new()
    .block(calls::PSCI, reason::HVC, "PSCI", calls::PSCI_NAMES)
    .block(calls::HVC_CALLS, reason::HVC, "", calls::HVC_NAMES)
    .block(sysreg::ID, reason::SYSREG, "", sysreg::ID_NAMES)
    .accesses(sysreg::HOT, reason::SYSREG, "", sysreg::HOT_NAMES)
    .accesses(mmio::GICD, reason::MMIO, "GICD", mmio::GICD_NAMES)
    .accesses(mmio::GICR, reason::MMIO, "GICR", mmio::GICR_NAMES)
    .accesses(mmio::PL011, reason::MMIO, "PL011", mmio::PL011_NAMES)
    .accesses(mmio::PL031, reason::MMIO, "PL031", mmio::PL031_NAMES)
    .block(mmio::MMIO_MISC, reason::MMIO, "", mmio::MMIO_MISC_NAMES)
    .block(events::WFX, reason::WFX, "", events::WFX_NAMES)
    .block(events::FAULT, reason::FAULT, "", events::FAULT_NAMES)
    .block(events::ABORT, reason::ABORT, "", events::ABORT_NAMES)
    .block(events::IRQ, reason::IRQ, "", events::IRQ_NAMES)
    .block(events::DEBUG, reason::DEBUG, "", events::DEBUG_NAMES)
    .block(events::NESTED, reason::NESTED, "", events::NESTED_NAMES)
    .block(events::FORWARDED, reason::FORWARDED, "", events::FORWARDED_NAMES)
    .finish(events::FORWARDED);

/// The names of the reasons and rows of AArch64.
pub static CATALOGUE: Catalogue = Catalogue { architecture: "aarch64", reasons: reason::NAMES, rows: &ROWS, key: key::write };
