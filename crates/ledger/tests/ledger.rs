//! The ledger's arithmetic, its hash table of dynamic rows, and its layout.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stile_ledger::aarch64::{self, CATALOGUE, HotRegister, key, reason};
use stile_ledger::{DYNAMIC_BASE, DYNAMIC_ROWS, Ledger, REASONS, ROWS, Reason, Row, RowId, RowKey, layout};

fn name(key: RowKey) -> String {
    let name = CATALOGUE.name(key).expect("the row has a name");
    format!("{} {}", name.reason_name, name.sub)
}

fn static_name(id: RowId) -> String {
    name(RowKey::Static(id))
}

#[test]
fn assembly_and_account_use_the_same_row() {
    let mut ledger = Box::new(Ledger::new());
    let id = aarch64::IRQ_KICK;
    ledger.account(id, 7);
    // The exit path's address computation.
    let offset = layout::ROWS_OFFSET + (usize::from(id.raw()) << layout::ROW_SHIFT);
    let row = std::ptr::from_ref(ledger.row(id)) as usize;
    assert_eq!(row - std::ptr::from_ref(&*ledger) as usize, offset);
    assert_eq!(size_of::<Row>(), 1 << layout::ROW_SHIFT);
    assert_eq!(ROWS, 1 << layout::ROW_BITS);
    let fields = [layout::ROW_COUNT, layout::ROW_TICKS, layout::ROW_MIN, layout::ROW_MAX];
    assert_eq!(fields, [0, 8, 16, 24]);
    assert_eq!(layout::TAKEN_OFFSET, 0);
}

#[test]
fn reset_makes_an_empty_ledger() {
    let mut ledger = Box::new(Ledger::new());
    ledger.take();
    let dynamic = ledger.row_for(reason::SYSREG, 1);
    ledger.account(dynamic, 3);
    assert_eq!(ledger.difference(), 0);
    ledger.reset();
    assert_eq!(ledger.taken, 0);
    assert_eq!(ledger.sum(), Row::EMPTY);
    assert_eq!(ledger.key(dynamic), None);
    assert_eq!(ledger.entries().count(), 0);
}

#[test]
fn frequent_rows_are_the_same_rows() {
    let (mut quick, mut plain) = (Box::new(Ledger::new()), Box::new(Ledger::new()));
    for key in (0..60).chain(0..60) {
        assert_eq!(quick.frequent_row_for(reason::SYSREG, key), plain.row_for(reason::SYSREG, key));
    }
}

#[test]
fn an_unaccounted_exit_is_a_difference() {
    let mut ledger = Box::new(Ledger::new());
    for _ in 0..3 {
        ledger.take();
    }
    ledger.account(aarch64::WFX_WFI, 1);
    assert_eq!(ledger.difference(), 2);
    for _ in 0..3 {
        ledger.account(aarch64::WFX_WFI, 1);
    }
    assert_eq!(ledger.difference(), -1);
}

#[test]
fn sums_wrap() {
    let mut row = Row { count: u64::MAX, ticks: u64::MAX, min: 1, max: 1 };
    row.account(u64::MAX);
    assert_eq!(row, Row { count: 0, ticks: u64::MAX - 1, min: 1, max: u64::MAX });
    assert_eq!(row.mean(), 0);
    let mut ledger = Box::new(Ledger::new());
    ledger.taken = u64::MAX;
    ledger.take();
    assert_eq!(ledger.difference(), 0);
}

#[test]
fn a_full_dynamic_table_falls_back_to_the_reason() {
    let mut ledger = Box::new(Ledger::new());
    let mut given = BTreeMap::new();
    for key in 0..10_000 {
        let id = ledger.row_for(reason::UNKNOWN, key);
        if id == reason::UNKNOWN.other() {
            continue;
        }
        assert!(id.is_dynamic());
        assert_eq!(given.insert(id, key), None, "a row was assigned to two keys");
    }
    assert_eq!(given.len(), DYNAMIC_ROWS, "every row is assigned eventually");
    for (id, key) in given {
        assert_eq!(ledger.row_for(reason::UNKNOWN, key), id);
        assert_eq!(ledger.key(id), Some(RowKey::Dynamic { reason: reason::UNKNOWN, key }));
    }
}

#[test]
fn dynamic_rows_suffice_for_typical_guests() {
    let mut ledger = Box::new(Ledger::new());
    // Registers of 16 breakpoints and watchpoints, read and written: neighbouring encodings.
    for number in 0..16 {
        for op2 in 4..8 {
            let key = key::sysreg(2 << 20 | op2 << 17 | number << 1);
            assert_ne!(ledger.row_for(reason::SYSREG, key), reason::SYSREG.other());
        }
    }
}

#[test]
fn names() {
    assert_eq!(static_name(aarch64::hvc(0x8400_0000)), "HVC PSCI VERSION");
    assert_eq!(static_name(aarch64::hvc(0xc400_0003)), "HVC PSCI CPU_ON");
    assert_eq!(static_name(aarch64::hvc(0x8400_0003)), "HVC PSCI CPU_ON");
    assert_eq!(static_name(aarch64::hvc(0x8000_0000)), "HVC SMCCC_VERSION");
    assert_eq!(static_name(aarch64::hvc(0x8000_8000)), "HVC SMCCC_ARCH_WORKAROUND");
    assert_eq!(static_name(aarch64::hvc(0xc500_0020)), "HVC PV_TIME");
    assert_eq!(static_name(aarch64::hvc(0x8600_ff01)), "HVC vendor query");
    assert_eq!(static_name(aarch64::hvc(0xc600_0001)), "HVC vendor call");
    for unknown in [0, 1, 0x8400_0020, 0x8400_00ff, 0x9400_0000, 0xffff_ffff] {
        assert_eq!(static_name(aarch64::hvc(unknown)), "HVC other");
    }
    assert_eq!(static_name(aarch64::id_register(4, 0)), "SYSREG ID_AA64PFR0_EL1");
    assert_eq!(static_name(aarch64::id_register(7, 3)), "SYSREG ID_AA64MMFR3_EL1");
    assert_eq!(static_name(aarch64::id_register(1, 7)), "SYSREG ID_MMFR3_EL1");
    assert_eq!(static_name(aarch64::sysreg(HotRegister::IccSgi1r, true)), "SYSREG ICC_SGI1R_EL1 write");
    assert_eq!(static_name(aarch64::sysreg(HotRegister::Actlr, false)), "SYSREG ACTLR_EL1 read");
    assert_eq!(static_name(aarch64::wfx(0x1e0_0000)), "WFX WFI");
    assert_eq!(static_name(aarch64::wfx(1)), "WFX WFE");
    assert_eq!(static_name(aarch64::wfx(2)), "WFX WFIT");
    assert_eq!(static_name(aarch64::IRQ_SPURIOUS), "IRQ spurious");
    assert_eq!(static_name(reason::FP.other()), "FP other");
}

#[test]
fn device_registers_have_names() {
    let cases = [
        (aarch64::gicd(0x0000, true), "GICD CTLR write"),
        (aarch64::gicd(0x0004, false), "GICD TYPER read"),
        (aarch64::gicd(0x0100, true), "GICD ISENABLER write"),
        (aarch64::gicd(0x017c, true), "GICD ISENABLER write"),
        (aarch64::gicd(0x0180, false), "GICD ICENABLER read"),
        (aarch64::gicd(0x07fc, true), "GICD IPRIORITYR write"),
        (aarch64::gicd(0x0c08, true), "GICD ICFGR write"),
        (aarch64::gicd(0x0d80, true), "GICD other write"),
        (aarch64::gicd(0x1000, false), "GICD other read"),
        (aarch64::gicd(0x6100, true), "GICD IROUTER write"),
        (aarch64::gicd(0x7ff8, true), "GICD IROUTER write"),
        (aarch64::gicd(0xffe8, false), "GICD ID read"),
        (aarch64::gicr(0x0014, true), "GICR WAKER write"),
        (aarch64::gicr(0x000c, false), "GICR TYPER read"),
        (aarch64::gicr(0xffe8, false), "GICR ID read"),
        (aarch64::gicr(0x1_0080, true), "GICR IGROUPR0 write"),
        (aarch64::gicr(0x1_0100, true), "GICR ISENABLER0 write"),
        (aarch64::gicr(0x1_041c, false), "GICR IPRIORITYR read"),
        (aarch64::gicr(0x1_0c04, true), "GICR ICFGR write"),
        (aarch64::gicr(0x1_ffe8, false), "GICR other read"),
        (aarch64::pl011(0x00, true), "PL011 DR write"),
        (aarch64::pl011(0x18, false), "PL011 FR read"),
        (aarch64::pl011(0x48, true), "PL011 DMACR write"),
        (aarch64::pl011(0x4c, true), "PL011 other write"),
        (aarch64::pl011(0xfe0, false), "PL011 other read"),
        (aarch64::pl031(0x00, false), "PL031 DR read"),
        (aarch64::pl031(0x1c, true), "PL031 ICR write"),
        (aarch64::pl031(0xffc, false), "PL031 other read"),
    ];
    for (id, expected) in cases {
        assert_eq!(static_name(id), format!("MMIO {expected}"));
    }
}

#[test]
fn dynamic_rows_have_names() {
    let dynamic = |reason, key| name(RowKey::Dynamic { reason, key });
    let iss = |op0: u32, op1: u32, crn: u32, crm: u32, op2: u32, rt: u32, read: u32| {
        op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | rt << 5 | crm << 1 | read
    };
    let hidden = key::sysreg(iss(3, 0, 15, 2, 0, 7, 1));
    assert_eq!(dynamic(reason::SYSREG, hidden), "SYSREG S3_0_C15_C2_0 read");
    assert_eq!(hidden, key::sysreg(iss(3, 0, 15, 2, 0, 31, 1)), "Rt is not part of the key");
    let known = key::sysreg(iss(3, 3, 9, 13, 0, 0, 0));
    assert_eq!(dynamic(reason::SYSREG, known), "SYSREG PMCCNTR_EL0 write");
    // A forwarded access is named like the static row.
    for (crm, op2) in (0..8).flat_map(|crm| (0..8).map(move |op2| (crm, op2))) {
        let expected = static_name(aarch64::id_register(crm, op2)).replace("SYSREG", "FORWARDED") + " read";
        let key = key::sysreg(iss(3, 0, 0, crm.into(), op2.into(), 0, 1));
        assert_eq!(dynamic(reason::FORWARDED, key), expected);
    }
    assert_eq!(dynamic(reason::MMIO, key::page(0x0a00_0e10, true)), "MMIO unmapped 0x0a000000 write");
    assert_eq!(dynamic(reason::ABORT, key::page(u64::MAX, false)), "ABORT unmapped 0x7fffffff000+ read");
    assert_eq!(dynamic(reason::HVC, 0x8400_0099), "HVC function 0x84000099");
    assert_eq!(dynamic(reason::UNKNOWN, 0x2d), "UNKNOWN EC 0x2d");
}

#[test]
fn static_rows_have_unique_names() {
    let mut names = BTreeSet::new();
    for id in CATALOGUE.static_rows() {
        assert!(names.insert(static_name(id)), "{}", static_name(id));
    }
    assert!(names.len() > 300);
    assert!(names.len() < DYNAMIC_BASE, "no static rows left");
}

#[test]
fn unassigned_rows_have_no_name() {
    let id = RowId::from_raw(REASONS as u16 - 1).expect("in range");
    assert!(CATALOGUE.name(RowKey::Static(id)).is_none());
    let id = RowId::from_raw(DYNAMIC_BASE as u16 - 1).expect("in range");
    assert!(CATALOGUE.name(RowKey::Static(id)).is_none());
    let reason = Reason::from_raw(REASONS as u8 - 1).expect("in range");
    assert!(CATALOGUE.name(RowKey::Dynamic { reason, key: 0 }).is_none());
    assert_eq!(Reason::from_raw(REASONS as u8), None);
    assert_eq!(RowId::from_raw(ROWS as u16), None);
}

/// An exit: its reason's number, a key, whether the key is used, and the duration.
fn exit() -> impl Strategy<Value = (u8, u32, bool, u64)> {
    (0u8..32, 0u32..400, any::<bool>(), any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every exit is counted once, in a row of its reason.
    #[test]
    fn every_exit_is_counted_once(exits in prop::collection::vec(exit(), 0..300)) {
        let mut ledger = Box::new(Ledger::new());
        let mut model: BTreeMap<u8, Row> = BTreeMap::new();
        for (number, key, dynamic, ticks) in exits {
            let reason = Reason::from_raw(number).expect("in range");
            ledger.take();
            let id = if dynamic { ledger.row_for(reason, key) } else { reason.other() };
            ledger.account(id, ticks);
            model.entry(number).or_default().account(ticks);
        }
        prop_assert_eq!(ledger.difference(), 0);
        let mut by_reason: BTreeMap<u8, Row> = BTreeMap::new();
        for entry in ledger.entries() {
            let reason = match entry.key {
                RowKey::Dynamic { reason, .. } => reason.raw(),
                RowKey::Static(id) => id.raw() as u8,
            };
            prop_assert_eq!(ledger.row(entry.id), &entry.row);
            by_reason.entry(reason).or_default().merge(&entry.row);
        }
        prop_assert_eq!(by_reason, model);
    }

    #[test]
    fn keys_survive_encoding(
        number in 0u8..32,
        key in any::<u32>(),
        row in 0..DYNAMIC_BASE as u16,
    ) {
        let reason = Reason::from_raw(number).expect("in range");
        let id = RowId::from_raw(row).expect("in range");
        for key in [RowKey::Dynamic { reason, key }, RowKey::Static(id)] {
            prop_assert_eq!(RowKey::decode(key.encode()), Some(key));
        }
    }

    /// A received code decodes to a key that encodes to the same code, or not at all.
    #[test]
    fn received_codes_are_validated(code in prop_oneof![any::<u64>(), 0..1u64 << 42, 0..1024u64]) {
        if let Some(key) = RowKey::decode(code) {
            prop_assert_eq!(key.encode(), code);
        }
    }

    /// No offset maps to another region's rows.
    #[test]
    fn offsets_stay_in_their_region(
        offset in any::<u32>(),
        write in any::<bool>(),
        crm in any::<u8>(),
        op2 in any::<u8>(),
    ) {
        for (id, region) in [
            (aarch64::gicd(offset, write), "MMIO GICD "),
            (aarch64::gicr(offset, write), "MMIO GICR "),
            (aarch64::pl011(offset, write), "MMIO PL011 "),
            (aarch64::pl031(offset, write), "MMIO PL031 "),
        ] {
            let name = static_name(id);
            let access = if write { " write" } else { " read" };
            prop_assert!(name.starts_with(region) && name.ends_with(access));
        }
        prop_assert!(static_name(aarch64::id_register(crm, op2)).starts_with("SYSREG "));
        prop_assert!(static_name(aarch64::hvc(offset)).starts_with("HVC "));
        prop_assert!(static_name(aarch64::wfx(offset)).starts_with("WFX "));
        let _ = name(RowKey::Dynamic { reason: reason::SYSREG, key: offset });
        let _ = name(RowKey::Dynamic { reason: reason::MMIO, key: offset });
    }
}
