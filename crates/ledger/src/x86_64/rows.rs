//! Static rows.

use super::reason;
use crate::RowId;
use crate::catalogue::{Block, named_rows};

/// The first serial port's registers, by their offset.
pub(super) const COM1_NAMES: &[&str] = &["data", "IER", "IIR/FCR", "LCR", "MCR", "LSR", "MSR", "scratch"];
pub(super) const COM1: Block = Block::first(2 * COM1_NAMES.len());

/// An access to a register of the first serial port: `offset` is below 8.
#[inline]
pub const fn com1(offset: u16, write: bool) -> RowId {
    COM1.access((offset & 7) as usize, write)
}

named_rows! {
    /// Physical interrupts.
    INTERRUPT INTERRUPT_NAMES = Some(COM1);
    /// Another CPU wants this one to look.
    INTERRUPT_KICK = "kick",
    /// A notification of posted interrupts that the processor did not take by itself: it came late, or the vCPU does without.
    INTERRUPT_POSTED = "posted",
    /// The timer of the vCPU's local APIC.
    INTERRUPT_GUEST_TIMER = "guest's timer",
    /// A slice's end, or a sleeper's deadline.
    INTERRUPT_TIMER = "slice or deadline",
    /// The machine's console.
    INTERRUPT_CONSOLE = "console",
    /// A second stage gives fewer rights.
    INTERRUPT_INVALIDATE = "invalidation",
    /// Nobody's.
    INTERRUPT_SPURIOUS = "spurious",
}

named_rows! {
    /// Control registers.
    CONTROL CONTROL_NAMES = Some(INTERRUPT);
    /// CR0.
    CR0 = "CR0 write",
    /// CR4.
    CR4 = "CR4 write",
    /// CR8.
    CR8 = "CR8",
}

named_rows! {
    /// Registers that are read without a call.
    LEAF_MSR LEAF_MSR_NAMES = Some(CONTROL);
    /// IA32_APIC_BASE.
    RDMSR_APIC_BASE = "IA32_APIC_BASE",
}

named_rows! {
    /// Registers that are written often.
    WRITTEN_MSR WRITTEN_MSR_NAMES = Some(LEAF_MSR);
    /// IA32_TSC_DEADLINE.
    WRMSR_TSC_DEADLINE = "IA32_TSC_DEADLINE",
    /// The end of an interrupt.
    WRMSR_X2APIC_EOI = "x2APIC EOI",
    /// An interrupt for another vCPU.
    WRMSR_X2APIC_ICR = "x2APIC ICR",
    /// One for the vCPU itself.
    WRMSR_X2APIC_SELF_IPI = "x2APIC self IPI",
}

named_rows! {
    /// Memory that is there.
    MEMORY MEMORY_NAMES = Some(WRITTEN_MSR);
    /// A write to a page on which decoded instructions depend.
    MMIO_PROTECTED = "RAM of cached code write",
    /// The first access to a block of RAM.
    MMIO_FIRST_TOUCH = "RAM first touched",
}

/// Devices in memory.
pub(super) const DEVICE_NAMES: &[&str] = &["local APIC", "I/O APIC"];
pub(super) const DEVICE: Block = MEMORY.then(2 * DEVICE_NAMES.len());

named_rows! {
    /// What a processor that virtualizes the local APIC leaves to the hypervisor.
    VIRTUAL_APIC VIRTUAL_APIC_NAMES = Some(DEVICE);
    /// The guest has written a register that does more than hold a value.
    APIC_WRITE = "register written",
    /// A level-triggered interrupt has ended.
    APIC_END = "end of a level interrupt",
    /// The task priority has fallen below that of an interrupt which waits.
    APIC_PRIORITY = "task priority lowered",
}

named_rows! {
    /// Exceptions that can cause themselves.
    EXCEPTION EXCEPTION_NAMES = Some(VIRTUAL_APIC);
    /// #DB.
    EXCEPTION_DEBUG = "debug",
    /// #AC.
    EXCEPTION_ALIGNMENT = "alignment check",
}

/// An access to the local APIC's page.
#[inline]
pub const fn local_apic(write: bool) -> RowId {
    DEVICE.access(0, write)
}

/// An access to the I/O APIC's page.
#[inline]
pub const fn io_apic(write: bool) -> RowId {
    DEVICE.access(1, write)
}

/// The row of an instruction that guests don't have, by its basic exit reason.
pub const fn absent(exit_reason: u64) -> RowId {
    const MWAIT: u64 = 36;
    const MONITOR: u64 = 39;
    match exit_reason {
        MWAIT | MONITOR => reason::MWAIT.other(),
        _ => reason::VMX.other(),
    }
}
