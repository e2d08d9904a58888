//! PUSHF, POPF, PUSHA and POPA with a stack in a device: privileges, modes and widths.

mod emulated;

use emulated::Machine;
use stile_x86_decode::{CodeSize, Fault, Outcome, Segment, SegmentName, decode, execute};

const BASE: u64 = 0x1_0000;
const RSP: usize = 4;
const TOP: u64 = BASE + 0x100;

const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const IOPL: u64 = 3 << 12;
const RF: u64 = 1 << 16;
const VM: u64 = 1 << 17;
const AC: u64 = 1 << 18;
const VIF: u64 = 1 << 19;
const VIP: u64 = 1 << 20;
const ID: u64 = 1 << 21;
/// CF, PF, AF, ZF, SF, TF, DF, OF, NT.
const FREE: u64 = 0x4dd5;
const ALWAYS: u64 = 2;

fn machine(privilege: u8, flags: u64) -> Machine {
    let mut machine = Machine::new(BASE, &[0; 0x1000]);
    machine.general[RSP] = TOP;
    machine.other.privilege = privilege;
    machine.flags = ALWAYS | flags;
    machine
}

fn run(machine: &mut Machine, bytes: &[u8], size: CodeSize) -> Result<Outcome, Fault> {
    execute(&decode(bytes, size).expect("an instruction"), machine, machine.general[RSP])
}

fn at(machine: &Machine, address: u64, bytes: usize) -> u64 {
    let bytes = &machine.memory[(address - BASE) as usize..][..bytes];
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Returns the flags after POPF of `new`, of a width in bytes.
fn popped(machine: &mut Machine, new: u64, bytes: usize) -> Result<Outcome, Fault> {
    let place = (machine.general[RSP] - BASE) as usize;
    machine.memory[place..place + bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
    match bytes {
        2 => run(machine, &[0x66, 0x9d], CodeSize::Bits32),
        4 => run(machine, &[0x9d], CodeSize::Bits32),
        _ => run(machine, &[0x9d], CodeSize::Bits64),
    }
}

#[test]
fn flags_are_pushed_without_rf_and_vm() {
    let flags = 0x3f_7fd5 & !VM | RF;
    for (bytes, size, width) in [
        (&[0x9c][..], CodeSize::Bits64, 8),
        (&[0x66, 0x9c], CodeSize::Bits64, 2),
        (&[0x9c], CodeSize::Bits32, 4),
        (&[0x66, 0x9c], CodeSize::Bits32, 2),
    ] {
        let mut m = machine(0, flags);
        assert_eq!(run(&mut m, bytes, size), Ok(Outcome::Complete));
        assert_eq!(m.general[RSP], TOP - width);
        let mask = u64::MAX >> (64 - 8 * width);
        assert_eq!(at(&m, m.general[RSP], width as usize), (m.flags & !RF) & mask);
    }
}

#[test]
fn popf_preserves_privileged_flags() {
    let all = FREE | IF | IOPL | AC | ID | VIF | VIP | VM | RF;
    for (privilege, level, changed) in [
        (0, 0, FREE | AC | ID | IF | IOPL),
        (3, 3, FREE | AC | ID | IF),
        (3, 0, FREE | AC | ID),
        (1, 1, FREE | AC | ID | IF),
        (2, 1, FREE | AC | ID),
    ] {
        for bytes in [2, 4, 8] {
            let mask = u64::MAX >> (64 - 8 * bytes);
            // Set all, then clear all: RF is always cleared.
            let old = ALWAYS | level << 12;
            let mut m = machine(privilege, old);
            let new = old | changed & mask;
            assert_eq!(popped(&mut m, all, bytes as usize), Ok(Outcome::Flags(new)), "{privilege} {level} {bytes}");
            assert_eq!((m.general[RSP], m.flags), (TOP + bytes, old));
            let old = ALWAYS | all & !VM & !IOPL | level << 12;
            let mut m = machine(privilege, old);
            let new = old & !(changed & mask) & !RF;
            let expected = Ok(Outcome::Flags(new));
            assert_eq!(popped(&mut m, 0, bytes as usize), expected, "{privilege} {level} {bytes}");
        }
    }
}

#[test]
fn virtual_8086_mode_uses_the_virtual_interrupt_flag() {
    const VME: u64 = 1;
    let virtual_machine = |level: u64, vme: u64, flags: u64| {
        let mut m = machine(3, VM | level << 12 | flags);
        m.other.cr4 = vme;
        m
    };
    // With IOPL 3 as in user mode.
    assert_eq!(popped(&mut virtual_machine(3, 0, 0), FREE | IF, 2), Ok(Outcome::Flags(ALWAYS | VM | IOPL | FREE | IF)));
    assert_eq!(run(&mut virtual_machine(3, 0, IF), &[0x9c], CodeSize::Bits16), Ok(Outcome::Complete));
    // With IOPL below 3, and without VME or with 32 bits, it faults.
    for (vme, bytes) in [(0, 2), (0, 4), (VME, 4)] {
        assert_eq!(popped(&mut virtual_machine(0, vme, 0), 0, bytes), Err(Fault::Protection));
    }
    assert_eq!(run(&mut virtual_machine(0, 0, 0), &[0x9c], CodeSize::Bits16), Err(Fault::Protection));
    // With VME the instructions access VIF.
    let mut m = virtual_machine(0, VME, VIF);
    assert_eq!(run(&mut m, &[0x9c], CodeSize::Bits16), Ok(Outcome::Complete));
    assert_eq!(at(&m, TOP - 2, 2), ALWAYS | IOPL | IF);
    let mut m = virtual_machine(0, VME, IF);
    assert_eq!(run(&mut m, &[0x9c], CodeSize::Bits16), Ok(Outcome::Complete));
    assert_eq!(at(&m, TOP - 2, 2), ALWAYS | IOPL);
    assert_eq!(popped(&mut virtual_machine(0, VME, 0), IF, 2), Ok(Outcome::Flags(ALWAYS | VM | VIF)));
    assert_eq!(popped(&mut virtual_machine(0, VME, VIF | IF), 0, 2), Ok(Outcome::Flags(ALWAYS | VM | IF)));
    assert_eq!(popped(&mut virtual_machine(0, VME, VIP), IF, 2), Err(Fault::Protection));
    assert_eq!(popped(&mut virtual_machine(0, VME, 0), TF, 2), Err(Fault::Protection));
}

#[test]
fn all_registers_are_pushed_and_popped() {
    const SKIPPED: usize = RSP;
    for (prefix, width) in [(&[][..], 4), (&[0x66], 2)] {
        let mask = u64::MAX >> (64 - 8 * width as u64);
        let mut m = machine(0, 0);
        for (n, register) in m.general.iter_mut().enumerate().filter(|(n, _)| *n != RSP) {
            *register = 0x1122_3344 * (n as u64 + 1);
        }
        let before = m.general;
        assert_eq!(run(&mut m, &[prefix, &[0x60]].concat(), CodeSize::Bits32), Ok(Outcome::Complete));
        assert_eq!(m.general[RSP], TOP - 8 * width as u64);
        for (n, register) in before.iter().enumerate().take(8) {
            assert_eq!(at(&m, TOP - (n as u64 + 1) * width as u64, width), register & mask, "{n}");
        }
        m.general = [0xdddd_dddd; 16];
        m.general[RSP] = TOP - 8 * width as u64;
        assert_eq!(run(&mut m, &[prefix, &[0x61]].concat(), CodeSize::Bits32), Ok(Outcome::Complete));
        for n in (0..8).filter(|&n| n != SKIPPED) {
            assert_eq!(m.general[n], 0xdddd_dddd & !mask | before[n] & mask, "{n}");
        }
        assert_eq!(m.general[RSP], TOP);
    }
}

/// A stack without space for all registers is not written.
#[test]
fn pusha_is_atomic() {
    let mut m = machine(0, 0);
    m.segments[SegmentName::Ss as usize] = Segment::from_vmcs(0, u32::MAX, 0x4093, true);
    m.general[RSP] = BASE + 12;
    let before = m.clone();
    assert!(matches!(run(&mut m, &[0x60], CodeSize::Bits32), Err(Fault::Page(fault)) if fault.linear == BASE - 4));
    assert!(m.memory == before.memory && m.general == before.general);
    // Nor do they fit below the end.
    m.general[RSP] = BASE + 0x1000 - 12;
    assert!(matches!(run(&mut m, &[0x61], CodeSize::Bits32), Err(Fault::Page(fault)) if fault.linear == BASE + 0x1000));
    assert_eq!(m.general[RSP], BASE + 0x1000 - 12);
}
