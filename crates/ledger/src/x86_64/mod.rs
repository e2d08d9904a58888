//! The reasons and static rows of x86-64.
//!
//! A reason is one of the processor's basic exit reasons ("VMX Basic Exit Reasons" in the Intel 64 and IA-32
//! Architectures Software Developer's Manual), or several with a common handler.

pub mod key;
pub mod reason;
mod rows;
mod svm;

use crate::catalogue::{Catalogue, RowTable, TableBuilder};

pub use rows::*;

static ROWS: RowTable = TableBuilder::new()
    .accesses(rows::COM1, reason::IO, "COM1", rows::COM1_NAMES)
    .block(rows::INTERRUPT, reason::INTERRUPT, "", rows::INTERRUPT_NAMES)
    .block(rows::CONTROL, reason::CR, "", rows::CONTROL_NAMES)
    .block(rows::LEAF_MSR, reason::RDMSR, "", rows::LEAF_MSR_NAMES)
    .block(rows::WRITTEN_MSR, reason::WRMSR, "", rows::WRITTEN_MSR_NAMES)
    .block(rows::MEMORY, reason::MMIO, "", rows::MEMORY_NAMES)
    .block(rows::SERVED, reason::MMIO, "", rows::SERVED_NAMES)
    .accesses(rows::DEVICE, reason::MMIO, "", rows::DEVICE_NAMES)
    .block(rows::VIRTUAL_APIC, reason::APIC, "", rows::VIRTUAL_APIC_NAMES)
    .block(rows::EXCEPTION, reason::EXCEPTION, "", rows::EXCEPTION_NAMES)
    .block(rows::HALT, reason::HLT, "", rows::HALT_NAMES)
    .finish(rows::HALT);

/// The names of the reasons and rows of x86-64 with VMX.
pub static CATALOGUE: Catalogue = Catalogue { architecture: "x86_64", reasons: reason::NAMES, rows: &ROWS, key: key::write };

/// The names of the reasons and rows of x86-64 with AMD-V.
pub static CATALOGUE_SVM: Catalogue = Catalogue { architecture: "x86_64", reasons: &svm::NAMES, rows: &ROWS, key: svm::write };
