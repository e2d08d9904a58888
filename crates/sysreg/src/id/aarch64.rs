//! The ID registers of AArch64 state: `CRm` 4 to 7.

use super::table::Register;
use crate::encoding::SysReg;

mod features;
mod instructions;
mod memory;

const fn register(name: &'static str, crm: u8, op2: u8, fields: &'static [super::table::Field]) -> Register {
    Register { name, reg: SysReg::new(3, 0, 0, crm, op2), aarch32: false, fields }
}

/// Sorted by encoding. A register without fields is hidden completely:
/// - `SMFR0`: SME is hidden.
/// - `FPFR0`: FPMR is hidden, which the 8-bit formats need.
/// - `DFR1`, `DFR2`: they extend features that `DFR0` hides.
/// - `AFR0`, `AFR1`: their meaning is IMPLEMENTATION DEFINED.
pub(super) const REGISTERS: [Register; 20] = [
    register("ID_AA64PFR0_EL1", 4, 0, features::PFR0),
    register("ID_AA64PFR1_EL1", 4, 1, features::PFR1),
    register("ID_AA64PFR2_EL1", 4, 2, features::PFR2),
    register("ID_AA64ZFR0_EL1", 4, 4, instructions::ZFR0),
    register("ID_AA64SMFR0_EL1", 4, 5, &[]),
    register("ID_AA64FPFR0_EL1", 4, 7, &[]),
    register("ID_AA64DFR0_EL1", 5, 0, features::DFR0),
    register("ID_AA64DFR1_EL1", 5, 1, &[]),
    register("ID_AA64DFR2_EL1", 5, 2, &[]),
    register("ID_AA64AFR0_EL1", 5, 4, &[]),
    register("ID_AA64AFR1_EL1", 5, 5, &[]),
    register("ID_AA64ISAR0_EL1", 6, 0, instructions::ISAR0),
    register("ID_AA64ISAR1_EL1", 6, 1, instructions::ISAR1),
    register("ID_AA64ISAR2_EL1", 6, 2, instructions::ISAR2),
    register("ID_AA64ISAR3_EL1", 6, 3, instructions::ISAR3),
    register("ID_AA64MMFR0_EL1", 7, 0, memory::MMFR0),
    register("ID_AA64MMFR1_EL1", 7, 1, memory::MMFR1),
    register("ID_AA64MMFR2_EL1", 7, 2, memory::MMFR2),
    register("ID_AA64MMFR3_EL1", 7, 3, memory::MMFR3),
    register("ID_AA64MMFR4_EL1", 7, 4, memory::MMFR4),
];
