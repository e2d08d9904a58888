//! Debug registers: a breakpoint that can be set works; otherwise the registers read as zero.

use payload::encode::{NOP, load};
use payload::harness::Test;
use payload::prelude::*;
use payload::{probe, tests};

pub const TESTS: &[Test] =
    tests![hardware_breakpoint, hardware_watchpoint, os_lock, os_lock_keeps_the_machines_fields, os_lock_stops_breakpoints];

/// MDSCR_EL1: monitor debug, and debug exceptions from EL1 to EL1.
const MDE_KDE: u64 = 1 << 15 | 1 << 13;
/// `msr DAIFClr, #8` and `msr DAIFSet, #8`: debug exceptions unmasked and masked.
const UNMASK: u32 = 0xD503_48FF;
const MASK: u32 = 0xD503_48DF;

/// Enables debug exceptions, runs the words, and disables them.
fn run(words: &[u32], registers: &mut probe::Registers) -> Option<payload::exception::Fault> {
    // OSLAR_EL1, OSDLR_EL1: unlocked.
    msr!("OSLAR_EL1", 0);
    let mdscr = mrs!("MDSCR_EL1");
    msr!("MDSCR_EL1", mdscr | MDE_KDE);
    let fault = probe::run(words, registers);
    msr!("MDSCR_EL1", mdscr);
    fault
}

fn hardware_breakpoint() -> Outcome {
    let address = probe::address() + 4;
    msr!("DBGBVR0_EL1", address);
    if mrs!("DBGBVR0_EL1") != address {
        skip!("no breakpoints");
    }
    // E, PMC: EL1, BAS: all.
    msr!("DBGBCR0_EL1", 1 | 1 << 1 | 0xF << 5);
    let fault = run(&[UNMASK, NOP, MASK], &mut [0; 31]);
    msr!("DBGBCR0_EL1", 0);
    check!(fault.is_some_and(|fault| fault.class() == 0x31 && fault.pc == address), "no breakpoint exception: {fault:x?}");
    Ok(())
}

fn hardware_watchpoint() -> Outcome {
    static WATCHED: u64 = 7;
    let address = &raw const WATCHED as u64;
    msr!("DBGWVR0_EL1", address);
    if mrs!("DBGWVR0_EL1") != address {
        skip!("no watchpoints");
    }
    // E, PAC: EL1, LSC: load and store, BAS: all.
    msr!("DBGWCR0_EL1", 1 | 1 << 1 | 3 << 3 | 0xFF << 5);
    let mut registers = [0; 31];
    registers[1] = address;
    let fault = run(&[UNMASK, load(3, 2, 1), MASK], &mut registers);
    msr!("DBGWCR0_EL1", 0);
    check!(fault.is_some_and(|fault| fault.class() == 0x35 && fault.far == address), "no watchpoint exception: {fault:x?}");
    Ok(())
}

fn os_lock() -> Outcome {
    for locked in [1, 0] {
        msr!("OSLAR_EL1", locked);
        let status = mrs!("OSLSR_EL1");
        check!(status >> 1 & 1 == locked || status & 0b1001 == 0, "OSLSR_EL1 is {status:#x} after OSLAR_EL1 {locked}");
    }
    Ok(())
}

/// With the OS lock set, MDSCR_EL1 writes fields of EDSCR (Arm ARM, MDSCR_EL1): INTdis masks interrupts, also those of a hypervisor, if there is
/// invasive debug.
fn os_lock_keeps_the_machines_fields() -> Outcome {
    /// RXfull, TXfull, RXO, TXU, INTdis, TDA, HDE, ERR.
    const EXTERNAL: u64 = 0b11 << 29 | 0b11 << 26 | 0b11 << 22 | 1 << 21 | 1 << 14 | 1 << 6;
    if !machine::is_stile() {
        skip!("not in a VM of Stile's");
    }
    msr!("OSLAR_EL1", 0);
    let before = mrs!("MDSCR_EL1");
    msr!("OSLAR_EL1", 1);
    msr!("MDSCR_EL1", EXTERNAL | MDE_KDE);
    let locked = mrs!("MDSCR_EL1");
    msr!("OSLAR_EL1", 0);
    let after = mrs!("MDSCR_EL1");
    msr!("MDSCR_EL1", before);
    check_eq!(locked, MDE_KDE, "MDSCR_EL1 with the OS lock set");
    check_eq!(after, MDE_KDE, "MDSCR_EL1 after that");
    Ok(())
}

/// A breakpoint that is set while the OS lock is set works once that is clear.
fn os_lock_stops_breakpoints() -> Outcome {
    if !machine::is_stile() {
        skip!("not in a VM of Stile's");
    }
    let address = probe::address() + 4;
    msr!("OSLAR_EL1", 1);
    let before = mrs!("MDSCR_EL1");
    msr!("DBGBVR0_EL1", address);
    msr!("DBGBCR0_EL1", 1 | 1 << 1 | 0xF << 5);
    msr!("MDSCR_EL1", before | MDE_KDE);
    let read = mrs!("DBGBVR0_EL1");
    let locked = probe::run(&[UNMASK, NOP, MASK], &mut [0; 31]);
    msr!("OSLAR_EL1", 0);
    let unlocked = probe::run(&[UNMASK, NOP, MASK], &mut [0; 31]);
    msr!("OSLAR_EL1", 1);
    let again = probe::run(&[UNMASK, NOP, MASK], &mut [0; 31]);
    msr!("OSLAR_EL1", 0);
    msr!("DBGBCR0_EL1", 0);
    msr!("MDSCR_EL1", before);
    check_eq!(read, address, "DBGBVR0_EL1 with the OS lock set");
    check!(locked.is_none(), "an exception with the OS lock set: {locked:x?}");
    check!(unlocked.is_some_and(|fault| fault.class() == 0x31 && fault.pc == address), "no breakpoint exception: {unlocked:x?}");
    check!(again.is_none(), "an exception with the OS lock set again: {again:x?}");
    Ok(())
}
