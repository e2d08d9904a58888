//! The table of system registers: its format, lookup and compile-time checks.

use super::row::{Fine, Row};
use super::{Control, debug, instructions, registers, trap};
use stile_sysreg::SysReg;

/// Everything that L1 can trap, sorted by encoding.
pub static ROWS: &[Row] = &ALL;

const COUNT: usize = instructions::ROWS.len() + debug::ROWS.len() + registers::ROWS.len();

const ALL: [Row; COUNT] = {
    let mut all = [instructions::ROWS[0]; COUNT];
    let parts = [instructions::ROWS, debug::ROWS, registers::ROWS];
    let (mut at, mut part) = (0, 0);
    while part < parts.len() {
        let mut n = 0;
        while n < parts[part].len() {
            all[at] = parts[part][n];
            at += 1;
            n += 1;
        }
        part += 1;
    }
    all
};

/// The row that contains `reg`.
#[inline]
pub fn row(reg: SysReg) -> Option<&'static Row> {
    let reg = canonical(reg);
    // Only the last row that begins at or before the register can contain it.
    let at = ROWS.partition_point(|row| row.first <= reg).checked_sub(1)?;
    ROWS.get(at).filter(|row| reg <= row.last)
}

/// `CRn` of TLB maintenance instructions, without and with the nXS qualifier.
const TLBI: u8 = 8;
const TLBI_NXS: u8 = 9;

/// Whether it is a TLB maintenance instruction with the nXS qualifier.
pub(super) const fn is_no_xs(reg: SysReg) -> bool {
    reg.op0() == 1 && reg.crn() == TLBI_NXS
}

/// The encoding under which `reg` is looked up: without the nXS qualifier, and with the first breakpoint or
/// watchpoint, which CRm numbers.
const fn canonical(reg: SysReg) -> SysReg {
    if is_no_xs(reg) {
        SysReg::new(1, reg.op1(), TLBI, reg.crm(), reg.op2())
    } else if reg.op0() == 2 && reg.op1() == 0 && reg.crn() == 0 && reg.op2() >= 4 {
        SysReg::new(2, 0, 0, 0, reg.op2())
    } else {
        reg
    }
}

/// Fails the build unless rows are sorted and disjoint.
const _: () = {
    let mut at = 0;
    while at < ALL.len() {
        assert!(ALL[at].first.bits() <= ALL[at].last.bits(), "a row ends before it begins");
        assert!(at == 0 || ALL[at - 1].last.bits() < ALL[at].first.bits(), "duplicate or misplaced row");
        assert!(!ALL[at].coarse.is_empty() || ALL[at].fine.is_some(), "a row without a trap");
        at += 1;
    }
};

/// The bits of each control that some row, or an exception class, uses.
const USED: [u64; Control::COUNT] = {
    let mut used = [0; Control::COUNT];
    let mut at = 0;
    while at < ALL.len() {
        let mut n = 0;
        while n < ALL[at].coarse.len() {
            used[ALL[at].coarse[n].control as usize] |= ALL[at].coarse[n].mask;
            n += 1;
        }
        if let Some(fine) = ALL[at].fine {
            let controls = fine.group.controls();
            used[controls[0] as usize] |= 1 << fine.bit;
            used[controls[1] as usize] |= 1 << fine.bit;
        }
        at += 1;
    }
    let mut at = 0;
    while at < trap::ALL.len() {
        used[trap::ALL[at].control as usize] |= trap::ALL[at].mask;
        at += 1;
    }
    used
};

/// The bits of the fine-grained trap registers that trap when they are 1.
pub(super) const TRAPS_BY_ONE: [u64; Control::COUNT] = {
    let mut bits = [0; Control::COUNT];
    let mut at = 0;
    while at < ALL.len() {
        if let Some(Fine { group, bit, inverted: false }) = ALL[at].fine {
            let controls = group.controls();
            bits[controls[0] as usize] |= 1 << bit;
            bits[controls[1] as usize] |= 1 << bit;
        }
        at += 1;
    }
    bits[Control::Hfgitr as usize] |= trap::FINE_ERET.mask | trap::FINE_SVC_EL0.mask | trap::FINE_SVC_EL1.mask;
    bits
};

/// Bits of a control that trap nothing, or only features that no guest of Stile has.
const NOT_USED: [u64; Control::COUNT] = {
    let mut bits = [0; Control::COUNT];
    // VM, SWIO, PTW, AMO, VF, VI, VSE, FB, BSU, DC, TGE, RW, CD, ID, E2H, TEA, MIOCNCE, TME, FWB, GPF, AMVOFFEN, DCT, TWEDEn, TWEDEL.
    bits[Control::Hcr as usize] =
        0x27 | 0x7 << 6 | 0xf << 9 | 1 << 27 | 1 << 31 | 7 << 32 | 7 << 37 | 1 << 46 | 1 << 48 | 1 << 51 | 1 << 57 | 0x1f << 59;
    // RES0.
    bits[Control::Hfgrtr as usize] = 1 << 51;
    bits[Control::Hfgwtr as usize] = 1 << 51;
    // nGCSSTR_EL1, nGCSEPP, PSBCSYNC: not for system registers or instructions; bit 61 is RES0.
    bits[Control::Hfgitr as usize] = 0b11 << 58 | 1 << 61 | 1 << 63;
    // TRC*: CPTR_EL2.TTA covers the whole trace unit.
    bits[Control::Hdfgrtr as usize] = 0xffff << 33;
    bits[Control::Hdfgwtr as usize] = 0xffff << 33;
    bits
};

/// Fails the build unless every bit of HCR_EL2 and of the fine-grained trap registers is accounted for
/// exactly once.
const _: () = {
    let whole = [Control::Hcr, Control::Hfgrtr, Control::Hfgwtr, Control::Hfgitr, Control::Hdfgrtr, Control::Hdfgwtr];
    let mut at = 0;
    while at < whole.len() {
        let control = whole[at] as usize;
        assert!(USED[control] | NOT_USED[control] == u64::MAX, "a bit of a control is not accounted for");
        assert!(USED[control] & NOT_USED[control] == 0, "a bit of a control is both used and unused");
        at += 1;
    }
};
