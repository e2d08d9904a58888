//! Identity of a CPU: the registers by which guests recognise it and its features.

use stile_sysreg::id::{HostIdRegisters, SPACE};

use super::sysreg::read_sysreg;

/// Registers that guests read directly, or see a view of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// ID registers.
    pub registers: HostIdRegisters,
    /// The implementation, by which guests select workarounds of errata.
    midr: u64,
    /// Lines of the caches.
    ctr: u64,
    /// Size of DC ZVA's block.
    dczid: u64,
}

impl Identity {
    /// Reads the registers of the calling CPU.
    pub fn read() -> Self {
        Self { registers: id_registers(), midr: read_sysreg!(MIDR_EL1), ctr: read_sysreg!(CTR_EL0), dczid: read_sysreg!("dczid_el0") }
    }
}

macro_rules! registers {
    ($($crm:literal: $($op2:literal)*;)*) => {
        /// Registers with op0 = 3, op1 = 0, CRn = 0.
        fn id_registers() -> HostIdRegisters {
            let mut registers = HostIdRegisters([0; SPACE]);
            $($(registers.0[$crm << 3 | $op2] = read_sysreg!(concat!("S3_0_C0_C", $crm, "_", $op2));)*)*
            registers
        }
    };
}
// Unallocated registers read as zero (Arm ARM, Principles of the ID scheme for fields in ID registers).
registers! {
    1: 0 1 2 3 4 5 6 7;
    2: 0 1 2 3 4 5 6 7;
    3: 0 1 2 3 4 5 6 7;
    4: 0 1 2 3 4 5 6 7;
    5: 0 1 2 3 4 5 6 7;
    6: 0 1 2 3 4 5 6 7;
    7: 0 1 2 3 4 5 6 7;
}
