//! Inputs of the guests' view of ID registers, other than the processor's own values.

/// Properties of the machine and of a VM's configuration that affect the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Width of the VM's guest-physical addresses in bits, as stage 2 translates them: 32 to 56.
    pub pa_bits: u8,
    /// The guest has virtual EL2.
    pub nested: bool,
    /// The guest may clear HCR_EL2.E2H.
    pub e2h0: bool,
    /// `HCRX_EL2` exists and lets the guest run memory copy and set instructions (`MSCEn`).
    pub hcrx: bool,
    /// The hypervisor switches SVE state between vCPUs.
    pub sve: bool,
}
