//! Reasons for an exit.

use crate::catalogue::reasons;

reasons! {
    /// A hypercall. Dynamic key: the function's identifier.
    HVC,
    /// A call to the secure monitor. Dynamic key: the function's identifier.
    SMC,
    /// The guest waits: WFI, WFE and their forms with a time-out.
    WFX,
    /// A trapped MSR, MRS or System instruction. Dynamic key:
    /// [`key::sysreg`](super::key::sysreg).
    SYSREG,
    /// An access to a device's registers, or to unmapped addresses. Dynamic key for the latter:
    /// [`key::page`](super::key::page).
    MMIO,
    /// A second-stage fault that ends with the page mapped, possibly by another CPU.
    FAULT,
    /// An external abort injected into the guest: it fetched, or walked its tables, in unmapped memory.
    /// Dynamic key: [`key::page`](super::key::page).
    ABORT,
    /// A physical IRQ.
    IRQ,
    /// A physical FIQ.
    FIQ,
    /// A physical SError.
    SERROR,
    /// First use of floating point and SIMD after a load.
    FP,
    /// Use of SVE.
    SVE,
    /// Use of SME.
    SME,
    /// Use of pointer authentication.
    PAUTH,
    /// Breakpoint, watchpoint, software step, BRK.
    DEBUG,
    /// Execution in an illegal state.
    ILLEGAL,
    /// A trap only from AArch32 code. Dynamic key: the syndrome's exception class.
    AARCH32,
    /// Ancillary exits: operations of a nested hypervisor at its EL2, for itself or while it handles an
    /// exit of its guest. Dynamic key, for registers and instructions:
    /// [`key::sysreg`](super::key::sysreg).
    NESTED,
    /// A forwarded exit: an exit of a nested guest that its hypervisor must see. Dynamic key, for
    /// registers: [`key::sysreg`](super::key::sysreg).
    FORWARDED,
    /// An unknown exception class. Dynamic key: the class.
    UNKNOWN,
}
