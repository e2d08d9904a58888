//! The reasons and static rows of x86-64.
//!
//! A reason is one of the processor's basic exit reasons ("VMX Basic Exit Reasons" in the Intel 64 and IA-32
//! Architectures Software Developer's Manual), or several with a common handler.

pub mod key;
mod rows;

use crate::catalogue::{Catalogue, RowTable, TableBuilder};

pub use rows::*;

/// Reasons for an exit.
pub mod reason {
    use crate::catalogue::reasons;

    reasons! {
        /// CPUID.
        CPUID,
        /// A hypercall.
        VMCALL,
        /// HLT.
        HLT,
        /// A spin-wait loop (PAUSE-loop exiting).
        PAUSE,
        /// IN or OUT. Dynamic key: [`key::port`](super::key::port).
        IO,
        /// RDMSR. Dynamic key: [`key::msr`](super::key::msr).
        RDMSR,
        /// WRMSR. Dynamic key: [`key::msr`](super::key::msr).
        WRMSR,
        /// An access to a device's registers, or to unmapped addresses. Dynamic key for the latter:
        /// [`key::page`](super::key::page).
        MMIO,
        /// Local APIC accesses that the processor virtualizes, with an exit for their side effects.
        APIC,
        /// A physical interrupt.
        INTERRUPT,
        /// A physical NMI.
        NMI,
        /// An exception of the guest that exits.
        EXCEPTION,
        /// Interrupt window: the guest can take a pending interrupt.
        WINDOW,
        /// NMI window: the guest can take a pending NMI.
        NMI_WINDOW,
        /// A control register.
        CR,
        /// XSETBV.
        XSETBV,
        /// INVD.
        INVD,
        /// RDPMC.
        RDPMC,
        /// MONITOR and MWAIT, which are not exposed to guests.
        MWAIT,
        /// VMX instructions, which are not exposed to guests.
        VMX,
        /// A task switch.
        TASK_SWITCH,
        /// A triple fault: the vCPU shuts down.
        TRIPLE_FAULT,
        /// A failed VM entry.
        ENTRY,
        /// An unknown exit reason. Dynamic key: the reason.
        UNKNOWN,
    }
}

static ROWS: RowTable = TableBuilder::new()
    .accesses(rows::COM1, reason::IO, "COM1", rows::COM1_NAMES)
    .block(rows::INTERRUPT, reason::INTERRUPT, "", rows::INTERRUPT_NAMES)
    .block(rows::CONTROL, reason::CR, "", rows::CONTROL_NAMES)
    .block(rows::LEAF_MSR, reason::RDMSR, "", rows::LEAF_MSR_NAMES)
    .block(rows::WRITTEN_MSR, reason::WRMSR, "", rows::WRITTEN_MSR_NAMES)
    .block(rows::MEMORY, reason::MMIO, "", rows::MEMORY_NAMES)
    .accesses(rows::DEVICE, reason::MMIO, "", rows::DEVICE_NAMES)
    .block(rows::VIRTUAL_APIC, reason::APIC, "", rows::VIRTUAL_APIC_NAMES)
    .block(rows::EXCEPTION, reason::EXCEPTION, "", rows::EXCEPTION_NAMES)
    .finish(rows::EXCEPTION);

/// The names of the reasons and rows of x86-64.
pub static CATALOGUE: Catalogue = Catalogue { architecture: "x86_64", reasons: reason::NAMES, rows: &ROWS, key: key::write };
