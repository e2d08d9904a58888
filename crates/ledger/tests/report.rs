//! Text and order of reports.
#![cfg(feature = "report")]

use insta::assert_snapshot;
use stile_ledger::aarch64::{self, CATALOGUE, HotRegister, key, reason};
use stile_ledger::report::{Account, Report};
use stile_ledger::{Ledger, Row, RowId, RowKey};

/// Counter frequency in Hz: one tick is 16 ns.
const FREQUENCY: u64 = 62_500_000;

fn exit(ledger: &mut Ledger, row: RowId, ticks: &[u64]) {
    for ticks in ticks {
        ledger.take();
        ledger.account(row, *ticks);
    }
}

fn ledger() -> Box<Ledger> {
    let mut ledger = Box::new(Ledger::new());
    exit(&mut ledger, aarch64::hvc(0x8400_0000), &[20, 22]);
    exit(&mut ledger, aarch64::hvc(0xc400_0003), &[900]);
    exit(&mut ledger, aarch64::hvc(0x8400_1234), &[18]);
    exit(&mut ledger, aarch64::id_register(4, 0), &[12; 5]);
    exit(&mut ledger, aarch64::sysreg(HotRegister::IccSgi1r, true), &[150, 210]);
    exit(&mut ledger, aarch64::pl011(0x18, false), &[40; 30]);
    exit(&mut ledger, aarch64::pl011(0x00, true), &[90; 30]);
    exit(&mut ledger, aarch64::IRQ_VIRTUAL_TIMER, &[60, 61, 62]);
    exit(&mut ledger, reason::FP.other(), &[100]);
    exit(&mut ledger, aarch64::WFX_WFI, &[6_250_000]);
    let hidden = ledger.row_for(reason::SYSREG, key::sysreg(3 << 20 | 15 << 10 | 2 << 1 | 1));
    exit(&mut ledger, hidden, &[30]);
    let nothing = ledger.row_for(reason::MMIO, key::page(0x0a00_0000, false));
    exit(&mut ledger, nothing, &[300]);
    ledger
}

#[test]
fn table() {
    let mut account = Account::of(&ledger());
    assert_eq!(account.difference(), 0);
    assert_snapshot!(account.table(&CATALOGUE, FREQUENCY));
    account.alive = 10 * FREQUENCY;
    let table = account.table(&CATALOGUE, FREQUENCY).to_string();
    assert_snapshot!(table.lines().rev().nth(1).expect("two lines at the end"));
}

#[test]
fn table_in_ticks_and_with_a_difference() {
    let mut ledger = Box::new(Ledger::new());
    exit(&mut ledger, aarch64::WFX_WFE, &[10, 30]);
    ledger.take();
    assert_snapshot!(Account::of(&ledger).table(&CATALOGUE, 0));
}

#[test]
fn small_rows_are_folded() {
    let mut ledger = ledger();
    // The wait has nearly all of the time; this row nearly all of the exits.
    exit(&mut ledger, aarch64::IRQ_VIRTUAL_TIMER, &[60; 5000]);
    let account = Account::of(&ledger);
    assert_snapshot!(account.table(&CATALOGUE, FREQUENCY).folded());
    let nothing = Account::new();
    let table = nothing.table(&CATALOGUE, FREQUENCY);
    assert_eq!(table.folded().to_string(), table.to_string());
}

#[test]
fn table_of_nothing() {
    assert_snapshot!(Account::new().table(&CATALOGUE, FREQUENCY));
}

#[test]
fn an_unknown_row_is_shown() {
    let mut account = Account::new();
    account.taken = 2;
    let mut row = Row::EMPTY;
    row.account(5);
    row.account(7);
    account.add(RowKey::Static(RowId::from_raw(383).expect("in range")), &row);
    assert_snapshot!(account.table(&CATALOGUE, 0));
}

#[test]
fn equal_keys_are_merged_across_ledgers() {
    let mut report = Report::new();
    for (vm, vcpu) in [(0, 0), (0, 1), (1, 0)] {
        let mut ledger = Box::new(Ledger::new());
        // The key gets another slot in each ledger.
        for key in 0..u32::from(vm + vcpu) * 40 {
            ledger.row_for(reason::UNKNOWN, key);
        }
        let row = ledger.row_for(reason::MMIO, 5);
        exit(&mut ledger, row, &[10 + u64::from(vcpu)]);
        report.account_mut(vm, vcpu).merge(&Account::of(&ledger));
    }
    assert_eq!(report.vms(), [0, 1]);
    assert_eq!(report.vcpus().count(), 3);
    let [reason] = &report.vm(0).reasons(&CATALOGUE)[..] else { panic!("one reason") };
    assert_eq!(reason.subs.len(), 1);
    assert_eq!(reason.row, Row { count: 2, ticks: 21, min: 10, max: 11 });
    assert_eq!(report.machine().total().count, 3);
    assert_eq!(report.machine().difference(), 0);
}

#[test]
fn the_most_expensive_comes_first() {
    let account = Account::of(&ledger());
    let lines = account.reasons(&CATALOGUE);
    assert!(lines.is_sorted_by(|a, b| a.row.ticks >= b.row.ticks));
    for line in &lines {
        assert!(line.subs.is_sorted_by(|a, b| a.row.ticks >= b.row.ticks));
        assert_eq!(line.row.count, line.subs.iter().map(|sub| sub.row.count).sum::<u64>());
    }
}
