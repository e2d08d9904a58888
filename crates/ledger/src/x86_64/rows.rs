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
    /// A kick by another CPU.
    INTERRUPT_KICK = "kick",
    /// A posted-interrupt notification that the processor did not consume: it was late, or posted interrupts
    /// are off for the vCPU.
    INTERRUPT_POSTED = "posted",
    /// The timer of the vCPU's local APIC.
    INTERRUPT_GUEST_TIMER = "guest's timer",
    /// The end of a slice, or the deadline of a blocked vCPU.
    INTERRUPT_TIMER = "slice or deadline",
    /// The machine's console.
    INTERRUPT_CONSOLE = "console",
    /// Another CPU has reduced permissions in a second stage: INVEPT is needed.
    INTERRUPT_INVALIDATE = "invalidation",
    /// No source found.
    INTERRUPT_SPURIOUS = "spurious",
    /// A guest that sends interprocessor interrupts itself has posted one for a vCPU that is loaded nowhere.
    INTERRUPT_WAKE = "wake-up",
    /// Events of the IOMMU.
    INTERRUPT_IOMMU = "IOMMU",
    /// A message of a PCI function.
    INTERRUPT_MESSAGE = "function's message",
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
    /// Registers read in assembly, without calling a handler.
    LEAF_MSR LEAF_MSR_NAMES = Some(CONTROL);
    /// IA32_APIC_BASE.
    RDMSR_APIC_BASE = "IA32_APIC_BASE",
}

named_rows! {
    /// Frequently written registers.
    WRITTEN_MSR WRITTEN_MSR_NAMES = Some(LEAF_MSR);
    /// IA32_TSC_DEADLINE.
    WRMSR_TSC_DEADLINE = "IA32_TSC_DEADLINE",
    /// End of interrupt.
    WRMSR_X2APIC_EOI = "x2APIC EOI",
    /// An IPI to another vCPU.
    WRMSR_X2APIC_ICR = "x2APIC ICR",
    /// A self-IPI.
    WRMSR_X2APIC_SELF_IPI = "x2APIC self IPI",
}

named_rows! {
    /// Mapped RAM.
    MEMORY MEMORY_NAMES = Some(WRITTEN_MSR);
    /// A write to a page that holds cached decoded instructions.
    MMIO_PROTECTED = "RAM of cached code write",
    /// The first access to a block of RAM.
    MMIO_FIRST_TOUCH = "RAM first touched",
}

named_rows! {
    /// Devices that VMs serve others.
    SERVED SERVED_NAMES = Some(MEMORY);
    /// A virtio device that another VM serves: registers other than the notifications.
    MMIO_VIRTIO = "virtio",
    /// A notification of such a device: a kick of the server.
    MMIO_VIRTIO_KICK = "kick of a server",
    /// A device that the VM serves: registers.
    MMIO_SERVER = "served device",
    /// A completion that the VM signals to a client.
    MMIO_SERVER_COMPLETION = "completion for a client",
}

/// Devices in memory.
pub(super) const DEVICE_NAMES: &[&str] = &["local APIC", "I/O APIC"];
pub(super) const DEVICE: Block = SERVED.then(2 * DEVICE_NAMES.len());

named_rows! {
    /// Exits of APIC virtualization.
    VIRTUAL_APIC VIRTUAL_APIC_NAMES = Some(DEVICE);
    /// APIC write: the guest wrote a register with side effects.
    APIC_WRITE = "register written",
    /// End of a level-triggered interrupt (virtualized EOI).
    APIC_END = "end of a level interrupt",
    /// The task priority fell below that of a pending interrupt (TPR below threshold).
    APIC_PRIORITY = "task priority lowered",
}

named_rows! {
    /// Intercepted exceptions that could recur without end during their own delivery.
    EXCEPTION EXCEPTION_NAMES = Some(VIRTUAL_APIC);
    /// #DB.
    EXCEPTION_DEBUG = "debug",
    /// #AC.
    EXCEPTION_ALIGNMENT = "alignment check",
}

named_rows! {
    /// HLT.
    HALT HALT_NAMES = Some(EXCEPTION);
    /// An interrupt or single step was pending: the guest continues immediately.
    HLT_AT_ONCE = "ended at once",
    /// The vCPU gives its CPU up: the exit ends at the call of the scheduler.
    HLT_WAIT = "waits, by the scheduler",
    /// AMD-V: the vCPU, which has its CPU for itself, waited in the handler and continues. The wait does not count as the exit's time.
    HLT_HERE = "waited on its CPU",
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

/// The row of an instruction not exposed to guests, by its basic exit reason.
pub const fn absent(exit_reason: u64) -> RowId {
    const MWAIT: u64 = 36;
    const MONITOR: u64 = 39;
    match exit_reason {
        MWAIT | MONITOR => reason::MWAIT.other(),
        _ => reason::VMX.other(),
    }
}
