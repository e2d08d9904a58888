use super::*;

/// Offsets from the manual's table, for a register of each kind.
#[test]
fn offsets() {
    let known = [
        (VTTBR_EL2, 0x20),
        (VTCR_EL2, 0x40),
        (CNTVOFF_EL2, 0x60),
        (HCR_EL2, 0x78),
        (SCTLR_EL1, 0x110),
        (SP_EL1, 0x240),
        (VBAR_EL1, 0x250),
        (ICH_VMCR_EL2, 0x4c8),
        (ich_lr(15), 0x478),
        (ich_ap0r(3), 0x498),
        (ich_ap1r(3), 0x4b8),
    ];
    for (slot, offset) in known {
        assert_eq!(slot.offset(), offset);
    }
    // An index beyond the last register stays within the page.
    assert_eq!(ich_lr(16), ich_lr(0));
}

#[test]
fn a_vhe_host_uses_aliases_for_its_vm() {
    let sctlr_el1 = SysReg::new(3, 0, 1, 0, 0);
    let sctlr_el12 = SysReg::new(3, 5, 1, 0, 0);
    assert_eq!(find(sctlr_el1, false), None);
    assert_eq!(find(sctlr_el12, false), Some(SCTLR_EL1));
    assert_eq!(find(sctlr_el1, true), Some(SCTLR_EL1));
    assert_eq!(find(sctlr_el12, true), None);
    let cntv_ctl_el02 = SysReg::new(3, 5, 14, 3, 1);
    assert_eq!(find(cntv_ctl_el02, false), Some(CNTV_CTL_EL0));
    assert_eq!(find(SysReg::new(3, 3, 14, 3, 1), false), None);
}

#[test]
fn el2_registers_are_redirected_for_any_nv1() {
    for nv1 in [false, true] {
        assert_eq!(find(SysReg::new(3, 4, 1, 1, 0), nv1), Some(HCR_EL2));
        // SP_EL1 has no alias; SCTLR_EL2 stays a register.
        assert_eq!(find(SysReg::new(3, 4, 4, 1, 0), nv1), Some(SP_EL1));
        assert_eq!(find(SysReg::new(3, 4, 1, 0, 0), nv1), None);
        assert_eq!(find(SysReg::new(3, 5, 15, 15, 7), nv1), None);
    }
}

#[test]
fn every_row_is_found_by_one_name_at_a_time() {
    for row in ROWS {
        match row.when {
            When::Always => assert_eq!([find(row.reg, false), find(row.reg, true)], [Some(row.slot); 2], "{}", row.name),
            When::Alias(alias) => {
                assert_eq!([find(row.reg, false), find(row.reg, true)], [None, Some(row.slot)], "{}", row.name);
                assert_eq!([find(alias, false), find(alias, true)], [Some(row.slot), None], "{}", row.name);
            }
        }
    }
}

#[test]
fn registers_store_values() {
    let page = Page::new();
    for (value, row) in (1..).zip(ROWS) {
        page.set(row.slot, value);
    }
    for (value, row) in (1..).zip(ROWS) {
        assert_eq!(page.get(row.slot), value, "{}", row.name);
    }
    page.clear();
    assert_eq!(page.get(HCR_EL2), 0);
}
