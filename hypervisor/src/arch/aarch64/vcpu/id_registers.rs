//! ID registers: the board's, and the guests' view of them (crate `stile-sysreg`).

use stile_sysreg::id::{HostIdRegisters, Policy, SPACE, guest_view};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::read_sysreg;

/// PARange of guests: the smallest architected size that covers the second stage. Addresses beyond the second stage
/// are unmapped.
pub const PA_BITS: u8 = 40;

/// Returns the guests' view, by CRm and op2. `nested`: with an EL2, whose HCR_EL2.E2H may be clear if `e2h0`.
pub fn for_guests(nested: bool, e2h0: bool) -> [u64; 64] {
    let have = features::get();
    guest_view(&read(), &Policy { pa_bits: PA_BITS, nested, e2h0, hcrx: have.hcx, sve: have.sve })
}

/// Removes the system registers of a GIC's CPU interface: ID_AA64PFR0_EL1.GIC, and ID_PFR1_EL1.GIC for AArch32.
pub fn hide_gic(view: &mut [u64; 64]) {
    const PFR0: usize = 4 << 3;
    const PFR1_32: usize = 1 << 3 | 1;
    view[PFR0] &= !(0xf << 24);
    view[PFR1_32] &= !(0xf << 28);
}

macro_rules! registers {
    ($($crm:literal: $($op2:literal)*;)*) => {
        /// The host's identification registers: op0 = 3, op1 = 0, CRn = 0.
        fn read() -> HostIdRegisters {
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
