use super::*;
use crate::layout;
use crate::vncr::{self, Page};
use std::vec::Vec;
use stile_sysreg::id::SPACE;

/// Controls with a test's values; all others trap nothing.
struct Written([u64; Control::COUNT]);

impl Written {
    fn nothing() -> Self {
        let mut written = Self([0; Control::COUNT]);
        for trap in trap::ALL {
            written.0[trap.control as usize] |= trap.mask & !trap.value;
        }
        // Inverted bits trap when they are 0.
        for (control, bit) in ROWS.iter().filter_map(|row| row.fine).filter(|fine| fine.inverted).flat_map(fine_controls) {
            written.0[control as usize] |= 1 << bit;
        }
        // With a condition of several bits, clearing one is enough. Set, these two would satisfy conditions of other rows.
        written.0[Control::Hcr as usize] &= !(trap::NV.mask | trap::NV1.mask);
        written
    }

    fn with(mut self, control: Control, bits: u64) -> Self {
        self.0[control as usize] |= bits;
        self
    }

    fn without(mut self, control: Control, bits: u64) -> Self {
        self.0[control as usize] &= !bits;
        self
    }
}

impl Controls for Written {
    fn get(&self, control: Control) -> u64 {
        self.0[control as usize]
    }
}

fn fine_controls(fine: Fine) -> [(Control, u32); 2] {
    fine.group.controls().map(|control| (control, fine.bit))
}

fn esr(ec: Ec, iss: u32) -> Esr {
    Esr(u64::from(ec.bits()) << 26 | 1 << 25 | u64::from(iss))
}

fn access(reg: SysReg, is_read: bool) -> Esr {
    esr(Ec::MSR, reg.to_iss() | u32::from(is_read))
}

fn judge(esr: Esr, controls: &Written) -> Verdict {
    verdict(esr, Level::El1, controls)
}

fn named(name: &str) -> SysReg {
    ROWS.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name}")).first
}

#[test]
fn untrapped_exits_are_kept() {
    let controls = Written::nothing();
    for row in ROWS {
        for is_read in [false, true] {
            assert_eq!(judge(access(row.first, is_read), &controls), Verdict::Keep, "{}", row.name);
            assert_eq!(judge(access(row.last, is_read), &controls), Verdict::Keep, "{}", row.name);
        }
    }
}

/// Each trap alone has exactly the effect of its row.
#[test]
fn each_trap_alone() {
    for trap in trap::ALL {
        let controls = Written::nothing().with(trap.control, trap.value).without(trap.control, trap.mask & !trap.value);
        for row in ROWS {
            for is_read in [false, true] {
                let expected = row.coarse.iter().any(|other| other.covers(is_read) && other.holds(&controls));
                let verdict = judge(access(row.first, is_read), &controls);
                assert_eq!(verdict == Verdict::Forward, expected, "{} with {}", row.name, trap.name);
            }
        }
    }
}

#[test]
fn fine_grained_traps_distinguish_reads_from_writes() {
    for row in ROWS {
        let Some(fine) = row.fine else { continue };
        for (is_read, (control, bit)) in [true, false].into_iter().zip(fine_controls(fine)) {
            let controls = match fine.inverted {
                false => Written::nothing().with(control, 1 << bit),
                true => Written::nothing().without(control, 1 << bit),
            };
            assert_eq!(judge(access(row.first, is_read), &controls), Verdict::Forward, "{}", row.name);
            if fine.group != FineGroup::Instruction {
                assert_eq!(judge(access(row.first, !is_read), &controls), Verdict::Keep, "{}", row.name);
            }
        }
    }
}

/// Names, controls and bits of selected registers, from the manual.
#[test]
fn rows_match_the_manual() {
    let facts = [
        ("SCTLR_EL1", false, Control::Hcr, 26),
        ("SCTLR_EL1", true, Control::Hcr, 30),
        ("TTBR0_EL1", false, Control::Hfgwtr, 36),
        ("CTR_EL0", true, Control::Hcr, 17),
        ("ID_<*>_EL1", true, Control::Hcr, 18),
        ("ICC_SGI1R_EL1", false, Control::Hcr, 4),
        ("ICC_DIR_EL1", false, Control::IchHcr, 14),
        ("ICC_PMR_EL1", true, Control::IchHcr, 10),
        ("PMCR_EL0", true, Control::Mdcr, 5),
        ("OSLAR_EL1", false, Control::Hdfgwtr, 8),
        ("TLBI VAE1IS", false, Control::Hcr, 54),
        ("TLBI RVAALE1OS", false, Control::Hfgitr, 27),
        ("DC ZVA", false, Control::Hcr, 28),
        ("AT S1E1R", false, Control::Hfgitr, 12),
        ("CNTV_CTL_EL0", true, Control::Cnthctl, 13),
        ("DBGBCR<n>_EL1", false, Control::Mdcr, 9),
    ];
    for (name, is_read, control, bit) in facts {
        let reg = named(name);
        assert_eq!(judge(access(reg, is_read), &Written::nothing().with(control, 1 << bit)), Verdict::Forward, "{name}");
    }
    // Pointer authentication keys trap while the bit is 0.
    let apk = Written::nothing().without(Control::Hcr, 1 << 40);
    assert_eq!(judge(access(named("APIAKeyLo_EL1"), true), &apk), Verdict::Forward);
    // Writes of an ID register, or of a register that only traps reads, are not trapped.
    let tid3 = Written::nothing().with(Control::Hcr, 1 << 18);
    assert_eq!(judge(access(named("ID_<*>_EL1"), false), &tid3), Verdict::Keep);
}

#[test]
fn breakpoints_of_any_number() {
    let controls = Written::nothing().with(Control::Hdfgwtr, 1 << 3);
    for n in 0..16 {
        assert_eq!(judge(access(SysReg::new(2, 0, 0, n, 6), false), &controls), Verdict::Forward);
        assert_eq!(judge(access(SysReg::new(2, 0, 0, n, 7), false), &controls), Verdict::Keep);
    }
}

#[test]
fn no_xs_maintenance_shares_its_plain_row() {
    let plain = named("TLBI VAE1IS");
    let no_xs = SysReg::new(1, 0, 9, plain.crm(), plain.op2());
    let fine = Written::nothing().with(Control::Hfgitr, 1 << 29);
    assert_eq!([judge(access(plain, false), &fine), judge(access(no_xs, false), &fine)], [Verdict::Forward; 2]);
    let spared = Written::nothing().with(Control::Hfgitr, 1 << 29).with(Control::Hcrx, 1 << 4);
    assert_eq!(judge(access(plain, false), &spared), Verdict::Forward);
    assert_eq!(judge(access(no_xs, false), &spared), Verdict::Keep);
    // HCR_EL2.TTLB traps all.
    assert_eq!(judge(access(no_xs, false), &spared.with(Control::Hcr, 1 << 25)), Verdict::Forward);
}

#[test]
fn exception_classes() {
    let nothing = Written::nothing;
    let cases = [
        (Ec::HVC64, 0, nothing(), Verdict::Forward),
        (Ec::HVC64, 0, nothing().with(Control::Hcr, 1 << 29), Verdict::Undefined),
        (Ec::SMC64, 0, nothing(), Verdict::Undefined),
        (Ec::SMC64, 0, nothing().with(Control::Hcr, 1 << 19), Verdict::Forward),
        (Ec::WFX, 0, nothing().with(Control::Hcr, 1 << 13), Verdict::Forward),
        (Ec::WFX, 1, nothing().with(Control::Hcr, 1 << 13), Verdict::Keep),
        (Ec::WFX, 3, nothing().with(Control::Hcr, 1 << 14), Verdict::Forward),
        (Ec::FP, 0, nothing(), Verdict::Keep),
        (Ec::FP, 0, nothing().without(Control::Cptr, 3 << 20), Verdict::Forward),
        (Ec::FP, 0, nothing().without(Control::Cptr, 1 << 20).with(Control::Cptr, 2 << 20), Verdict::Forward),
        (Ec::FP, 0, nothing().without(Control::Cptr, 2 << 20), Verdict::Keep),
        (Ec::SVE, 0, nothing().without(Control::Cptr, 3 << 16), Verdict::Forward),
        (Ec::PAUTH, 0, nothing().without(Control::Hcr, 1 << 41), Verdict::Forward),
        (Ec::BRK64, 0, nothing().with(Control::Mdcr, 1 << 8), Verdict::Forward),
        (Ec::BRK64, 0, nothing(), Verdict::Keep),
        (Ec::ERET, 0, nothing().with(Control::Hfgitr, 1 << 51), Verdict::Forward),
        (Ec::SVC64, 0, nothing().with(Control::Hfgitr, 1 << 53), Verdict::Forward),
        (Ec::SVC64, 0, nothing().with(Control::Hfgitr, 1 << 52), Verdict::Keep),
        (Ec::DATA_ABORT_LOWER, 0, nothing(), Verdict::SecondStage),
        (Ec::INSTRUCTION_ABORT_LOWER, 0, nothing(), Verdict::SecondStage),
        (Ec::SERROR, 0, nothing(), Verdict::Keep),
        // MCR of CRn 7 with HSTR_EL2.T7; MRC of the PMU; MRRC of CNTPCT.
        (Ec::CP15_MCR, 7 << 10, nothing().with(Control::Hstr, 1 << 7), Verdict::Forward),
        (Ec::CP15_MCR, 9 << 10 | 13 << 1 | 1, nothing().with(Control::Mdcr, 1 << 6), Verdict::Forward),
        (Ec::CP15_MCRR, 14 << 1 | 1, nothing().without(Control::Cnthctl, 1 << 10), Verdict::Forward),
        (Ec::CP15_MCR, 13 << 10, nothing(), Verdict::Keep),
        // MRC of TPIDRURW, by the trap of TPIDR_EL0; MCR of TPIDRURO, by that for reads; CFPRCTX.
        (Ec::CP15_MCR, 2 << 17 | 13 << 10 | 1, nothing().with(Control::Hfgrtr, 1 << 35), Verdict::Forward),
        (Ec::CP15_MCR, 3 << 17 | 13 << 10, nothing().with(Control::Hfgrtr, 1 << 34), Verdict::Keep),
        (Ec::CP15_MCR, 4 << 17 | 7 << 10 | 3 << 1, nothing().with(Control::Hfgitr, 1 << 48), Verdict::Forward),
        // MRC of PMCR, which alone has TPMCR; MRRC of PMCCNTR by its fine-grained trap.
        (Ec::CP15_MCR, 9 << 10 | 12 << 1 | 1, nothing().with(Control::Mdcr, 1 << 5), Verdict::Forward),
        (Ec::CP15_MCR, 1 << 17 | 9 << 10 | 12 << 1 | 1, nothing().with(Control::Mdcr, 1 << 5), Verdict::Keep),
        (Ec::CP15_MCRR, 9 << 1 | 1, nothing().with(Control::Hdfgrtr, 1 << 15), Verdict::Forward),
        (Ec::CP15_MCRR, 9 << 1, nothing().with(Control::Hdfgrtr, 1 << 15), Verdict::Keep),
        // DBGDRAR by MRC and MRRC, DBGDSAR: TDRA. DBGDIDR: TDA. DBGDSCRint, and LDC of DBGDTRTXint: TDA, TDCC.
        (Ec::CP14_MCR, 1 << 10 | 1, nothing().with(Control::Mdcr, 1 << 11), Verdict::Forward),
        (Ec::CP14_MRRC, 1 << 1 | 1, nothing().with(Control::Mdcr, 1 << 11), Verdict::Forward),
        (Ec::CP14_MRRC, 2 << 1 | 1, nothing().with(Control::Mdcr, 1 << 9 | 1 << 27), Verdict::Keep),
        (Ec::CP14_MCR, 1, nothing().with(Control::Mdcr, 1 << 9), Verdict::Forward),
        (Ec::CP14_MCR, 1, nothing().with(Control::Mdcr, 1 << 27 | 1 << 11), Verdict::Keep),
        (Ec::CP14_MCR, 1 << 1 | 1, nothing().with(Control::Mdcr, 1 << 27), Verdict::Forward),
        (Ec::CP14_LDC, 1, nothing().with(Control::Mdcr, 1 << 27), Verdict::Forward),
        (Ec::CP14_LDC, 1, nothing().with(Control::Mdcr, 1 << 11), Verdict::Keep),
    ];
    for (ec, iss, controls, expected) in cases {
        assert_eq!(judge(esr(ec, iss), &controls), expected, "{ec:?} {iss:#x}");
    }
    let svc = nothing().with(Control::Hfgitr, 1 << 52);
    assert_eq!(verdict(esr(Ec::SVC64, 0), Level::El0, &svc), Verdict::Forward);
}

#[test]
fn layouts_without_e2h() {
    let page = Page::new();
    let masks = Masks::new(&[0x7777_7777_7777_7777; SPACE]);
    let virt = |cptr, cnthctl| Virtual { page: &page, masks: &masks, cptr: layout::cptr(cptr), mdcr: 0, cnthctl: layout::cnthctl(cnthctl) };
    let fp = esr(Ec::FP, 0);
    // CPTR_EL2.TFP, and the meaning of the same bit with E2H set.
    assert_eq!(verdict(fp, Level::El1, &virt(1 << 10, 0)), Verdict::Forward);
    assert_eq!(verdict(fp, Level::El1, &virt(0, 0)), Verdict::Keep);
    let cntpct = access(named("CNTPCT_EL0"), true);
    assert_eq!(verdict(cntpct, Level::El1, &virt(0, 1)), Verdict::Keep);
    assert_eq!(verdict(cntpct, Level::El1, &virt(0, 1 << 10)), Verdict::Forward);
}

#[test]
fn e2h_is_fixed_or_writable_by_feature() {
    const MMFR1: usize = 7 << 3 | 1;
    const MMFR4: usize = 7 << 3 | 4;
    let hcr = |vh: u64, e2h0: u64, written| {
        let mut view = [0; SPACE];
        view[MMFR1] = vh << 8;
        view[MMFR4] = e2h0 << 24;
        Masks::new(&view).apply(Control::Hcr, written) & trap::HCR_E2H != 0
    };
    assert_eq!([hcr(0, 0, 0), hcr(0, 0, u64::MAX)], [false; 2]);
    assert_eq!([hcr(1, 0, 0), hcr(1, 0, u64::MAX)], [false, true]);
    assert_eq!([hcr(1, 0xe, 0), hcr(1, 0xf, u64::MAX)], [true; 2]);
}

/// A VM whose processor has EL2 without optional features: no control of a feature has an effect, and none
/// traps by being 0.
#[test]
fn a_processor_without_features() {
    let masks = Masks::new(&[0; SPACE]);
    let page = Page::new();
    // Registers with a trap that applies while its bit is 0.
    let by_zero = |row: &&Row| row.fine.is_some_and(|fine| fine.inverted) || row.coarse.iter().any(|trap| trap.value == 0);
    let of_every_processor = ["CNTPCT_EL0", "CNTPCTSS_EL0", "CNTP_TVAL_EL0", "CNTP_CTL_EL0", "CNTP_CVAL_EL0"];
    let kept = ROWS.iter().filter(by_zero).filter(|row| !of_every_processor.contains(&row.name));
    let kept: Vec<_> = kept.filter(|row| !row.coarse.iter().any(|trap| trap.name == "HCR_EL2.TVM")).map(|row| row.first).collect();
    assert!(kept.len() > 30);
    for hcr in [0, u64::MAX] {
        page.set(vncr::HCR_EL2, hcr);
        for slot in [vncr::HFGRTR_EL2, vncr::HFGWTR_EL2, vncr::HFGITR_EL2, vncr::HDFGRTR_EL2, vncr::HDFGWTR_EL2] {
            page.set(slot, hcr);
        }
        let controls = Virtual { page: &page, masks: &masks, cptr: 0, mdcr: 0, cnthctl: 0 };
        for &reg in &kept {
            assert_eq!(verdict(access(reg, true), Level::El1, &controls), Verdict::Keep, "{reg}");
        }
        assert_eq!(verdict(access(named("TPIDR_EL1"), true), Level::El1, &controls), Verdict::Keep);
        assert_eq!(verdict(access(named("TPIDR_EL1"), false), Level::El1, &controls), Verdict::Keep);
    }
    // Architecturally required traps still work.
    assert_eq!(
        verdict(access(named("SCTLR_EL1"), true), Level::El1, &Virtual { page: &page, masks: &masks, cptr: 0, mdcr: 0, cnthctl: 0 }),
        Verdict::Forward
    );
}

const FINE: [Control; 5] = [Control::Hfgrtr, Control::Hfgwtr, Control::Hfgitr, Control::Hdfgrtr, Control::Hdfgwtr];

/// A fine-grained trap set in hardware for L1 never traps more than L1 requested.
#[test]
fn fine_grained_traps_on_the_processor() {
    let every = Masks::new(&[0x7777_7777_7777_7777; SPACE]);
    for row in ROWS {
        let Some(fine) = row.fine else { continue };
        for (is_read, (control, bit)) in [true, false].into_iter().zip(fine_controls(fine)) {
            let page = Page::new();
            let controls =
                |masks| Virtual { page: &page, masks, cptr: 3 << 16 | 3 << 20 | 3 << 24, mdcr: 1 << 12 | 1 << 24, cnthctl: 3 << 10 };
            page.set(vncr::HCR_EL2, 1 << 40 | 1 << 41 | 1 << 47 | 1 << 53 | 1 << 56);
            page.set(vncr::HCRX_EL2, !(1 << 4));
            let slots = [vncr::HFGRTR_EL2, vncr::HFGWTR_EL2, vncr::HFGITR_EL2, vncr::HDFGRTR_EL2, vncr::HDFGWTR_EL2];
            for (slot, other) in slots.into_iter().zip(FINE) {
                page.set(slot, if other == control { every.fine(control) & 1 << bit } else { 0 });
            }
            let offered = every.fine(control) >> bit & 1 != 0;
            assert!(!(offered && fine.inverted), "{}", row.name);
            if offered {
                assert_eq!(verdict(access(row.first, is_read), Level::El1, &controls(&every)), Verdict::Forward, "{}", row.name);
            }
        }
    }
    // A processor with fine-grained traps but no other feature: no bit of missing features.
    let mut view = [0; SPACE];
    view[7 << 3] = 1 << 56;
    let none = Masks::new(&view);
    let absent = [
        (Control::Hfgrtr, "APIAKeyLo_EL1"),
        (Control::Hfgrtr, "ERRIDR_EL1"),
        (Control::Hfgwtr, "SCXTNUM_EL1"),
        (Control::Hfgitr, "TLBI RVAE1"),
        (Control::Hfgitr, "DC CVADP"),
        (Control::Hdfgrtr, "PMCCNTR_EL0"),
        (Control::Hdfgwtr, "PMSCR_EL1"),
        (Control::Hdfgrtr, "TRBIDR_EL1"),
    ];
    for (control, name) in absent {
        let fine = ROWS.iter().find(|row| row.name == name).and_then(|row| row.fine).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(none.fine(control) >> fine.bit & 1, 0, "{name}");
        assert_eq!(every.fine(control) >> fine.bit & 1, 1, "{name}");
    }
    for control in FINE {
        assert_ne!(none.fine(control), 0);
        assert_eq!(none.fine(control) & !every.fine(control), 0);
        assert_eq!(Masks::new(&[0; SPACE]).fine(control), 0);
    }
    // No bits for reads of write-only, or writes of read-only registers.
    assert_eq!(every.fine(Control::Hdfgrtr) >> 8 & 1, 0);
    assert_eq!(every.fine(Control::Hfgwtr) >> 14 & 1, 0);
}

#[test]
fn every_syndrome_has_a_verdict() {
    let controls = Written::nothing();
    for ec in 0..64 {
        for iss in [0, 0x1ff_ffff, 0x0aa_aaaa, 0x155_5555] {
            let _ = judge(esr(Ec::new(ec), iss), &controls);
        }
    }
}
