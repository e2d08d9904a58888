use super::*;
use crate::encoding::SysReg;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn splits_class_length_and_rest() {
    let esr = Esr(0x5a00_1234);
    assert_eq!(esr.ec(), Ec::HVC64);
    assert!(esr.il());
    assert_eq!(esr.instruction_bytes(), 4);
    assert_eq!(esr.immediate(), 0x1234);
    assert_eq!(Esr(0).instruction_bytes(), 2);
    // ISS2, from bit 32, is not part of the class or the ISS.
    let with_iss2 = Esr(0x1f_5a00_1234);
    assert_eq!((with_iss2.ec(), with_iss2.iss()), (esr.ec(), esr.iss()));
}

#[test]
fn classes_are_distinct_and_named() {
    let distinct: BTreeSet<u8> = class::ALL.iter().map(|class| class.bits()).collect();
    assert_eq!(distinct.len(), class::ALL.len());
    assert_eq!(Ec::new(0x3f).name(), "reserved");
    assert_eq!(std::format!("{:?}", Ec::WFX), "0x01 (WFI or WFE)");
}

#[test]
fn a_trapped_register_access() {
    // `msr icc_sgi1r_el1, x7`, trapped.
    let esr = Esr(0x18 << 26 | 1 << 25 | u64::from(SysReg::ICC_SGI1R_EL1.to_iss()) | 7 << 5);
    assert_eq!(esr.ec(), Ec::MSR);
    assert_eq!(esr.msr().reg(), SysReg::ICC_SGI1R_EL1);
    assert_eq!(esr.msr().rt(), 7);
    assert!(!esr.msr().is_read());
    assert!(Esr(esr.0 | 1).msr().is_read());
}

#[test]
fn a_device_access() {
    // `ldrsh w19, [x0]` to an unmapped page: ISV, SAS 1, SSE, SRT 19, translation level 3.
    let esr = Esr(0x24 << 26 | 1 << 25 | 1 << 24 | 1 << 22 | 1 << 21 | 19 << 16 | 0b00_0111);
    let abort = esr.data_abort();
    assert!(abort.isv() && !abort.wnr() && !abort.sf() && !abort.s1ptw());
    assert_eq!((abort.size(), abort.srt()), (2, 19));
    assert!(abort.fault().is_translation());
    assert_eq!(abort.fault().kind(), FaultKind::Translation(3));
    assert_eq!(abort.loaded_value(0x1234_8001), 0xffff_8001);
    assert_eq!(abort.store_value(0x1234_8001), 0x8001);
    assert_eq!(abort.with_sf(true).loaded_value(0x8001), !0x7ffe);
    assert_eq!(abort.with_sse(false).loaded_value(0x1234_8001), 0x8001);
}

#[test]
fn cache_maintenance_of_a_device() {
    // `dc civac, x0` of an unmapped page: CM, WnR, translation level 3.
    let abort = Esr(0x24 << 26 | 1 << 25 | 1 << 8 | 1 << 6 | 0b00_0111).data_abort();
    assert!(abort.is_unmapped_maintenance());
    assert!(!abort.with_cm(false).is_unmapped_maintenance(), "a store");
    assert!(!abort.with_s1ptw(true).is_unmapped_maintenance(), "the guest's tables are at an unmapped address");
    assert!(!abort.with_dfsc(0b00_1111).is_unmapped_maintenance(), "a permission fault");
}

#[test]
fn whole_registers_are_not_cut() {
    let abort = DataAbort::new().with_sas(3).with_sf(true);
    assert_eq!(abort.loaded_value(u64::MAX), u64::MAX);
    assert_eq!(abort.store_value(u64::MAX), u64::MAX);
}

#[test]
fn wait_instructions() {
    let kinds = [WfKind::Wfi, WfKind::Wfe, WfKind::Wfit, WfKind::Wfet];
    for (ti, kind) in (0..).zip(kinds) {
        let iss = Esr(0x07e0_0000 | 5 << 5 | 1 << 2 | ti).wfx();
        assert_eq!((iss.kind(), iss.rn(), iss.rv()), (kind, 5, true));
    }
}

#[test]
fn fault_kinds() {
    let kind = |bits| Fault::new(bits).kind();
    assert_eq!(kind(0x00), FaultKind::AddressSize(0));
    assert_eq!(kind(0x05), FaultKind::Translation(1));
    assert_eq!(kind(0x0b), FaultKind::AccessFlag(3));
    assert_eq!(kind(0x0f), FaultKind::Permission(3));
    assert_eq!(kind(0x10), FaultKind::External);
    assert_eq!(kind(0x13), FaultKind::ExternalOnWalk(-1));
    assert_eq!(kind(0x16), FaultKind::ExternalOnWalk(2));
    assert_eq!(kind(0x21), FaultKind::Alignment);
    assert_eq!(kind(0x2b), FaultKind::Translation(-1));
    assert_eq!(kind(0x30), FaultKind::TlbConflict);
    assert_eq!(kind(0x35), FaultKind::UnsupportedExclusiveOrAtomic);
    assert_eq!(kind(0x3d), FaultKind::Other(0x3d));
    for bits in 0..64 {
        let fault = Fault::new(bits);
        let levels = 0..=3;
        let translation = matches!(fault.kind(), FaultKind::Translation(l) if levels.contains(&l));
        assert_eq!(fault.is_translation(), translation);
        let permission = matches!(fault.kind(), FaultKind::Permission(_));
        assert_eq!(fault.is_permission(), permission);
    }
}

#[test]
fn made_syndromes() {
    assert_eq!(undefined(true), 0x0200_0000);
    assert_eq!(undefined(false), 0);
    assert_eq!(external_data_abort(Origin::LowerEl, false), 0x9200_0010);
    assert_eq!(external_data_abort(Origin::SameEl, true), 0x9600_0050);
    assert_eq!(external_instruction_abort(Origin::LowerEl), 0x8200_0010);
    assert_eq!(external_instruction_abort(Origin::SameEl), 0x8600_0010);
}

proptest! {
    #[test]
    fn any_syndrome_can_be_read(bits: u64, raw: u64) {
        let esr = Esr(bits);
        let abort = esr.data_abort();
        let stored = abort.store_value(raw);
        prop_assert!(abort.size() == 8 || stored < 1 << (8 * abort.size()));
        // A stored value loads unchanged within the access's width, with any extension.
        prop_assert_eq!(abort.store_value(abort.with_sf(true).loaded_value(stored)), stored);
        prop_assert!(abort.srt() < 32 && esr.msr().rt() < 32 && esr.wfx().rn() < 32);
        abort.fault().kind();
        esr.ec().name();
    }
}
