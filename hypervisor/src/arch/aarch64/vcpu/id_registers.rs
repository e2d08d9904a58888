//! ID registers as guests read them (crate `stile-sysreg`).

use stile_sysreg::id::{Policy, guest_view};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::identity::Identity;

/// PARange of guests: the smallest architected size that covers the second stage. Addresses beyond the second stage
/// are unmapped.
pub const PA_BITS: u8 = 40;

/// Returns the view, by CRm and op2, of guests that run on CPUs of this identity. `nested`: with an EL2, whose
/// HCR_EL2.E2H may be clear if `e2h0`.
pub fn for_guests(on: &Identity, nested: bool, e2h0: bool) -> [u64; 64] {
    let have = features::get();
    guest_view(&on.registers, &Policy { pa_bits: PA_BITS, nested, e2h0, hcrx: have.hcx, sve: have.sve })
}

/// Removes the system registers of a GIC's CPU interface: ID_AA64PFR0_EL1.GIC, and ID_PFR1_EL1.GIC for AArch32.
pub fn hide_gic(view: &mut [u64; 64]) {
    const PFR0: usize = 4 << 3;
    const PFR1_32: usize = 1 << 3 | 1;
    view[PFR0] &= !(0xf << 24);
    view[PFR1_32] &= !(0xf << 28);
}
