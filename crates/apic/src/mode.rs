//! Modes of a local APIC.

/// The APIC's mode: bits 11:10 of IA32_APIC_BASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Disabled: no register access.
    Disabled,
    /// xAPIC: registers in a page.
    XApic,
    /// x2APIC: registers as MSRs.
    X2Apic,
}
