//! ID register values for guests.
//!
//! Reads of the ID space (`op0` 3, `op1` 0, `CRn` 0, `CRm` 1 to 7: Arm ARM, "HCR_EL2.TID3") trap
//! and are answered from a precomputed table: [`guest_view`].
//!
//! The tables in [`REGISTERS`] have a row for each field, with its visible values and the reason.
//! A field without a row, a value above its row's maximum, and a register that is not in the
//! tables read as if the feature were absent. A feature that is newer than the tables is thus
//! never offered: it may need state that is not switched between vCPUs, or a control at EL2 that is
//! not set. "Principles of the ID scheme for fields in ID registers" in the Arm ARM makes this
//! safe: a greater value implies all lesser ones, and all-zeros (or all-ones, in a signed field)
//! means absence.
//!
//! The hypervisor must implement the view: besides the EL1 registers of Armv8.0, it switches the
//! pointer authentication keys, the debug registers (or traps them), and SVE state if
//! [`Policy::sve`].

use crate::encoding::SysReg;

mod aarch32;
mod aarch64;
mod policy;
mod registers;
mod table;
#[cfg(test)]
mod tests;

pub use policy::Policy;
pub use registers::REGISTERS;
pub use table::{Field, Given, Register, Treatment};

/// Number of registers in the ID space, including `CRm` 0, which is not part of the view.
pub const SPACE: usize = 64;

/// The ID registers of a processor, by [`SysReg::id_index`]; the first eight are unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdRegisters(pub [u64; SPACE]);

/// Returns the guest's values, by [`SysReg::id_index`].
pub fn guest_view(host: &HostIdRegisters, policy: &Policy) -> [u64; SPACE] {
    let mut view = [0; SPACE];
    let aarch32 = has_aarch32_el0(host);
    for register in REGISTERS {
        if register.aarch32 && !aarch32 {
            continue;
        }
        if let (Some(seen), Some(&of_host)) = (view.get_mut(register.index()), host.0.get(register.index())) {
            *seen = register.guest_value(of_host, policy);
        }
    }
    view
}

/// Whether EL0 supports AArch32. Otherwise the AArch32 ID registers are UNKNOWN.
const fn has_aarch32_el0(host: &HostIdRegisters) -> bool {
    const ID_AA64PFR0_EL1: usize = 4 << 3;
    host.0[ID_AA64PFR0_EL1] & 0xf >= 2
}

/// The name of an ID register; `None` for a reserved one and for any other register.
pub fn name(reg: SysReg) -> Option<&'static str> {
    REGISTERS.binary_search_by_key(&reg, |register| register.reg).ok().and_then(|at| REGISTERS.get(at)).map(|register| register.name)
}
