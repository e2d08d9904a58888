//! Reasons for an exit.

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
    /// VMX instructions. Dynamic key, in a nested VM: [`key::instruction`](super::key::instruction).
    VMX,
    /// A task switch.
    TASK_SWITCH,
    /// A triple fault: the vCPU shuts down.
    TRIPLE_FAULT,
    /// A failed VM entry.
    ENTRY,
    /// An exit of a VM in a VM (L2). Dynamic key: [`key::exit_of_l2`](super::key::exit_of_l2).
    L2,
    /// An unknown exit reason. Dynamic key: the reason.
    UNKNOWN,
}
