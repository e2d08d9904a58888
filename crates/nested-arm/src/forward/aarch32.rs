//! Traps of AArch32 code at L2's EL0: the coprocessor registers accessible at EL0.

use super::trap::{self, Trap};
use super::{Control, Controls, row};
use stile_sysreg::SysReg;
use stile_sysreg::syndrome::{Ec, Esr};

/// Whether L1 traps the access with this syndrome. Arm ARM, "ISS encoding for an exception from an MCR or MRC access"
/// and "from an MCRR or MRRC access".
pub(super) fn is_trapped(esr: Esr, controls: &impl Controls) -> bool {
    let iss = esr.iss();
    let crm = iss >> 1 & 0xf;
    let crn = iss >> 10 & 0xf;
    let any = |traps: &[Trap]| traps.iter().any(|trap| trap.holds(controls));
    match esr.ec() {
        Ec::CP15_MCR => by_number(crn, controls) || any(cp15(crn, crm, iss >> 17 & 0x7)) || is_fine(fine_of(iss), iss, controls),
        Ec::CP15_MCRR => {
            let opc1 = iss >> 16 & 0xf;
            by_number(crm, controls) || any(cp15_64(crm, opc1)) || is_fine(fine_of_64(crm, opc1), iss, controls)
        }
        Ec::CP14_MCR => any(cp14(crn, crm)),
        Ec::CP14_LDC => any(CHANNEL),
        Ec::CP14_MRRC => any(ROM_ADDRESSES),
        // VMRS of FPSID and MVFRn is undefined at EL0: this class is not expected.
        Ec::VMRS => any(&[trap::TID0, trap::TID3]),
        _ => false,
    }
}

/// Whether HSTR_EL2.T`n` is set. It traps a 32-bit access by its `CRn`, a 64-bit one by its `CRm`.
fn by_number(n: u32, controls: &impl Controls) -> bool {
    controls.get(Control::Hstr) >> n & 1 != 0
}

/// Whether the fine-grained trap of the equivalent AArch64 register or instruction is set.
fn is_fine(equivalent: Option<SysReg>, iss: u32, controls: &impl Controls) -> bool {
    let is_read = iss & 1 != 0;
    equivalent.and_then(row).and_then(|row| row.fine).is_some_and(|fine| fine.holds(is_read, false, controls))
}

/// The AArch64 register or instruction with a fine-grained trap that an MCR or MRC access is subject to.
fn fine_of(iss: u32) -> Option<SysReg> {
    let (opc1, crn, crm, opc2) = (iss >> 14 & 0x7, iss >> 10 & 0xf, iss >> 1 & 0xf, iss >> 17 & 0x7);
    match (opc1, crn, crm, opc2) {
        // CFPRCTX, DVPRCTX, COSPRCTX, CPPRCTX.
        (0, 7, 3, 4..=7) => Some(SysReg::new(1, 3, 7, 3, opc2 as u8)),
        // TPIDRURW, TPIDRURO.
        (0, 13, 0, 2 | 3) => Some(SysReg::new(3, 3, 13, 0, opc2 as u8)),
        // PMU registers: the AArch64 encoding differs in op1 only.
        (0, 9, 12..=14, _) | (0, 14, 8..=15, _) => Some(SysReg::new(3, 3, crn as u8, crm as u8, opc2 as u8)),
        _ => None,
    }
}

/// [`fine_of`], of an MCRR or MRRC access: PMCCNTR.
const fn fine_of_64(crm: u32, opc1: u32) -> Option<SysReg> {
    if crm == 9 && opc1 == 0 { Some(SysReg::new(3, 3, 9, 13, 0)) } else { None }
}

/// Traps of the debug communications channel: DBGDSCRint, DBGDTRRXint, DBGDTRTXint.
const CHANNEL: &[Trap] = &[trap::TDE, trap::TDA, trap::TDCC];
/// Traps of DBGDRAR and DBGDSAR, in either width.
const ROM_ADDRESSES: &[Trap] = &[trap::TDE, trap::TDRA];

/// Returns the traps of an MCR or MRC access to a debug register that is accessible at EL0 (Arm ARM, MDCR_EL2.{TDRA, TDA, TDCC}).
const fn cp14(crn: u32, crm: u32) -> &'static [Trap] {
    match (crn, crm) {
        (1 | 2, _) => ROM_ADDRESSES,
        // DBGDIDR.
        (0, 0) => &[trap::TDE, trap::TDA],
        _ => CHANNEL,
    }
}

/// Returns the traps of an MCR or MRC access, HSTR_EL2 and fine-grained traps excepted.
const fn cp15(crn: u32, crm: u32, opc2: u32) -> &'static [Trap] {
    match (crn, crm) {
        // PMCR.
        (9, 12) if opc2 == 0 => &[trap::TPM, trap::TPMCR],
        (9, 12..=14) | (14, 8..=15) => &[trap::TPM],
        // HCR_EL2.TIDCP: IMPLEMENTATION DEFINED functionality.
        (9, 0..=2 | 5..=8) | (10, 0 | 1 | 4 | 8) | (11, 0..=8 | 15) => &[trap::TIDCP],
        (14, 2) => &[trap::EL1PTEN],
        (14, 3) => &[trap::EL1TVT],
        _ => &[],
    }
}

/// Returns the traps of an MCRR or MRRC access, HSTR_EL2 excepted.
const fn cp15_64(crm: u32, opc1: u32) -> &'static [Trap] {
    match (crm, opc1) {
        (9, _) => &[trap::TPM],
        (14, 0 | 8) => &[trap::EL1PCTEN],
        (14, 1 | 9) => &[trap::EL1TVCT],
        (14, 2) => &[trap::EL1PTEN],
        (14, 3) => &[trap::EL1TVT],
        _ => &[],
    }
}
