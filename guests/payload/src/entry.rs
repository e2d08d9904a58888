//! The state in which CPUs are entered.

/// HCR_EL2 of a guest at EL2: RW, TGE, E2H.
pub const HCR: u64 = 1 << 27 | 1 << 31 | 1 << 34;

/// The state in which a CPU was entered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    /// SCTLR_EL1: the MMU must be off.
    pub sctlr: u64,
    /// DAIF: all masked.
    pub daif: u64,
    /// CurrentEL: EL1, or EL2.
    pub current_el: u64,
    /// SPSel: 1.
    pub spsel: u64,
    /// x0: the device tree, or CPU_ON's context.
    pub x0: u64,
    /// MPIDR_EL1.
    pub mpidr: u64,
}

impl Entry {
    /// Whether the state conforms to PSCI and the boot protocol: EL1h or EL2h, MMU off, exceptions masked.
    pub fn is_clean(&self) -> bool {
        self.sctlr & 1 == 0 && self.daif & 0x3C0 == 0x3C0 && matches!(self.current_el, 4 | 8) && self.spsel & 1 == 1
    }
}

/// The entry address of secondary CPUs.
pub fn start_address() -> u64 {
    unsafe extern "C" {
        fn secondary_start();
    }
    secondary_start as *const () as u64
}
