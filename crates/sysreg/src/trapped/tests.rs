use super::*;
use std::collections::BTreeSet;
use std::vec::Vec;

#[test]
fn known_registers_have_their_class() {
    let cases = [
        ((3, 0, 12, 11, 5), "ICC_SGI1R_EL1", Class::Sgi),
        ((3, 0, 1, 0, 1), "ACTLR_EL1", Class::Actlr),
        ((3, 3, 9, 12, 0), "PMCR_EL0", Class::Pmu),
        ((3, 3, 14, 11, 6), "PMEVCNTR<n>_EL0", Class::Pmu),
        ((3, 3, 14, 15, 7), "PMCCFILTR_EL0", Class::Pmu),
        ((3, 0, 10, 4, 7), "LORID_EL1", Class::LoRegion),
        ((3, 0, 5, 5, 2), "ERXMISC<n>_EL1", Class::Ras),
        ((1, 0, 7, 14, 2), "DC CISW", Class::SetWay),
        ((2, 0, 0, 15, 7), "DBGWCR15_EL1", Class::Debug),
        ((2, 0, 0, 2, 0), "MDCCINT_EL1", Class::DebugComms),
        ((2, 0, 0, 2, 4), "DBGBVR2_EL1", Class::Debug),
        ((2, 0, 1, 1, 4), "OSLSR_EL1", Class::OsLock),
        ((2, 1, 0, 0, 0), "TRC<n>", Class::Trace),
        ((2, 1, 9, 0, 0), "BRB<n>_EL1", Class::Trace),
        ((3, 3, 14, 2, 1), "CNTP_CTL_EL0", Class::Timer),
        ((3, 7, 15, 15, 7), "S3_7_C15_<n>", Class::ImplementationDefined),
        ((1, 0, 11, 0, 0), "S1_0_C11_<n>", Class::ImplementationDefined),
    ];
    for ((op0, op1, crn, crm, op2), name, class) in cases {
        let reg = SysReg::new(op0, op1, crn, crm, op2);
        assert_eq!(row(reg).map(|row| row.name), Some(name));
        assert_eq!(classify(reg), class, "{reg}");
    }
}

#[test]
fn the_rest_is_hidden_and_undefined() {
    let allint = SysReg::new(3, 0, 4, 3, 0);
    let cntps_ctl = SysReg::new(3, 7, 14, 2, 1);
    let pmevcntr31 = SysReg::new(3, 3, 14, 11, 7);
    for reg in [allint, cntps_ctl, pmevcntr31, SysReg::new(0, 0, 0, 0, 0)] {
        assert_eq!(classify(reg), Class::Hidden, "{reg}");
        assert_eq!(classify(reg).answer(), Answer::Undefined);
    }
}

#[test]
fn search_agrees_with_the_table() {
    for (reg, slow) in all().map(|reg| {
        let slow = ROWS.iter().position(|row| row.first <= reg && reg <= row.last);
        (reg, slow)
    }) {
        assert_eq!(index(reg), slow, "{reg}");
    }
}

#[test]
fn slots_are_dense_and_named() {
    let used: BTreeSet<u16> = all().map(slot).collect();
    let expected: Vec<u16> = (0..SLOTS as u16).collect();
    assert!(used.iter().copied().eq(expected));
    for reg in all() {
        if let Some(name) = crate::id::name(reg).or_else(|| row(reg).map(|row| row.name)) {
            assert_eq!(slot_name(slot(reg)), name);
        }
    }
    assert_eq!(slot_name(u16::MAX), "other register");
    assert_eq!(slot_name(slot(SysReg::new(3, 0, 0, 7, 7))), "reserved ID register");
}

#[test]
fn names_are_distinct() {
    let rows = ROWS.iter().map(|row| row.name);
    let ids = id::REGISTERS.iter().map(|register| register.name);
    let distinct: BTreeSet<&str> = rows.clone().chain(ids.clone()).collect();
    assert_eq!(distinct.len(), rows.count() + ids.count());
}

/// Every encoding.
fn all() -> impl Iterator<Item = SysReg> {
    (0..1u32 << 16).map(|bits| SysReg::new((bits >> 14) as u8, (bits >> 11) as u8, (bits >> 7) as u8, (bits >> 3) as u8, bits as u8))
}
