//! CALL and RET to other code segments: stacks, privileges and modes.

mod emulated;

use emulated::Machine;
use stile_x86_decode::{CodeSize, Fault, Outcome, Segment, SegmentName, decode, execute};

const BASE: u64 = 0x1_0000;
const TOP: u64 = BASE + 0x800;
const GDT: u64 = BASE + 0x400;
const RBX: usize = 3;
const RSP: usize = 4;
const CS: usize = SegmentName::Cs as usize;
/// The caller's and the target's address.
const RIP: u64 = 0x5000;
const TARGET: u64 = 0x1_2345;

/// 64-bit code at 8 and 0x10, privilege level 3 code at 0x18, data at 0x20.
fn machine() -> Machine {
    let mut m = Machine::new(BASE, &[0; 0x1000]);
    m.general[RBX] = BASE;
    m.general[RSP] = TOP;
    m.rip = RIP;
    m.other.tables[0] = (GDT, 0x27);
    m.other.selectors[CS] = 8;
    for (at, entry) in
        [(8, 0x00af_9b00_0000_ffff), (0x10, 0x00af_9b00_0000_ffff), (0x18, 0x00af_fb00_0000_ffff), (0x20, 0x00cf_9300_0000_ffff)]
    {
        put(&mut m, GDT + at, u64::to_le_bytes(entry).as_slice());
    }
    m
}

fn put(m: &mut Machine, at: u64, bytes: &[u8]) {
    let at = (at - BASE) as usize;
    m.memory[at..at + bytes.len()].copy_from_slice(bytes);
}

fn at(m: &Machine, at: u64, bytes: usize) -> u64 {
    m.memory[(at - BASE) as usize..][..bytes].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn run(m: &mut Machine, bytes: &[u8], size: CodeSize) -> Result<Outcome, Fault> {
    let decoded = decode(bytes, size).expect("an instruction");
    assert_eq!(usize::from(decoded.len()), bytes.len());
    execute(&decoded, m, BASE)
}

/// CALL and RET of 64 and of 32 bits.
#[test]
fn returns_undo_calls() {
    for (call, ret, width) in
        [(&[0x48, 0xff, 0x1b][..], &[0x48, 0xcb][..], 8), (&[0xff, 0x1b], &[0xcb], 4), (&[0xff, 0x1b], &[0xca, 0x20, 0], 4)]
    {
        let mut m = machine();
        put(&mut m, BASE, &u64::to_le_bytes(TARGET)[..width as usize]);
        put(&mut m, BASE + width, &[0x10, 0]);
        assert_eq!(run(&mut m, call, CodeSize::Bits64), Ok(Outcome::Jump(TARGET)));
        assert_eq!((m.general[RSP], m.other.selectors[CS]), (TOP - 2 * width, 0x10));
        let next = RIP + call.len() as u64;
        assert_eq!((at(&m, TOP - width, width as usize), at(&m, TOP - 2 * width, width as usize)), (8, next));
        assert_eq!(run(&mut m, ret, CodeSize::Bits64), Ok(Outcome::Jump(next)));
        let dropped = if ret.len() == 3 { 0x20 } else { 0 };
        assert_eq!((m.general[RSP], m.other.selectors[CS]), (TOP + dropped, 8));
    }
}

#[test]
fn returns_keep_the_privilege() {
    let outer = Err(Fault::InvalidOpcode);
    for (selector, privilege, expected) in [
        (0x10, 0, Ok(Outcome::Jump(TARGET))),
        (0x1b, 3, Ok(Outcome::Jump(TARGET))),
        (0x1b, 0, outer),
        (0x10, 3, Err(Fault::Selector(0x10))),
        (0x18, 0, Err(Fault::Selector(0x18))),
        (0x20, 0, Err(Fault::Selector(0x20))),
        (0, 0, Err(Fault::Protection)),
        (0x28, 0, Err(Fault::Selector(0x28))),
    ] {
        let mut m = machine();
        m.other.privilege = privilege;
        put(&mut m, TOP, &u64::to_le_bytes(TARGET));
        put(&mut m, TOP + 8, &u16::to_le_bytes(selector));
        assert_eq!(run(&mut m, &[0x48, 0xcb], CodeSize::Bits64), expected, "{selector:x} {privilege}");
        let after = if expected.is_ok() { (TOP + 16, selector) } else { (TOP, 8) };
        assert_eq!((m.general[RSP], m.other.selectors[CS]), after, "{selector:x} {privilege}");
    }
}

#[test]
fn real_mode_has_no_descriptors() {
    let mut m = machine();
    m.other.cr0 = 0;
    m.other.efer = 0;
    m.segments = [Segment::from_vmcs(0, 0xffff, 0x9b, false); 6];
    m.segments[SegmentName::Ss as usize] = Segment::from_vmcs(BASE, 0xffff, 0x93, false);
    m.general[RSP] = 0x800;
    // CALL 4321:8765, and RETF 2.
    assert_eq!(run(&mut m, &[0x9a, 0x65, 0x87, 0x21, 0x43], CodeSize::Bits16), Ok(Outcome::Jump(0x8765)));
    assert_eq!((m.general[RSP], m.other.selectors[CS], m.segments[CS].base), (0x7fc, 0x4321, 0x4_3210));
    assert_eq!((at(&m, BASE + 0x7fe, 2), at(&m, BASE + 0x7fc, 2)), (8, RIP + 5));
    assert_eq!(run(&mut m, &[0xca, 2, 0], CodeSize::Bits16), Ok(Outcome::Jump(RIP + 5)));
    assert_eq!((m.general[RSP], m.other.selectors[CS]), (0x802, 8));
    // Beyond the limit: CALL 4321:18765.
    let far = run(&mut m, &[0x66, 0x9a, 0x65, 0x87, 1, 0, 0x21, 0x43], CodeSize::Bits16);
    assert_eq!((far, m.general[RSP]), (Err(Fault::Protection), 0x802));
}

/// By CALL, RET and JMP, but not if they fault.
#[test]
fn accessed_flag_of_code_is_set() {
    const ACCESSED: u64 = 1 << 40;
    let marked = |bytes: &[u8], offset: u64| {
        let mut m = machine();
        let there = at(&m, GDT + 0x10, 8) & !ACCESSED;
        put(&mut m, GDT + 0x10, &there.to_le_bytes());
        for pointer in [BASE, TOP] {
            put(&mut m, pointer, &offset.to_le_bytes());
            put(&mut m, pointer + 8, &[0x10, 0]);
        }
        let done = run(&mut m, bytes, CodeSize::Bits64);
        let after = at(&m, GDT + 0x10, 8);
        assert_eq!(after & !ACCESSED, there);
        (done.is_ok(), after != there)
    };
    for bytes in [&[0x48, 0xff, 0x1b][..], &[0x48, 0xcb], &[0x48, 0xff, 0x2b]] {
        assert_eq!(marked(bytes, TARGET), (true, true), "{bytes:02x?}");
        assert_eq!(marked(bytes, 1 << 63), (false, false), "{bytes:02x?}");
    }
}

/// A call without room on the stack changes nothing.
#[test]
fn far_calls_push_atomically() {
    let mut m = machine();
    put(&mut m, BASE + 0x10, &u64::to_le_bytes(TARGET));
    put(&mut m, BASE + 0x18, &[0x10, 0]);
    m.general[RBX] = BASE + 0x10;
    m.general[RSP] = BASE + 8;
    let before = m.clone();
    let done = execute(&decode(&[0x48, 0xff, 0x1b], CodeSize::Bits64).unwrap(), &mut m, BASE + 0x10);
    assert!(matches!(done, Err(Fault::Page(fault)) if fault.linear == BASE - 8));
    assert!(m.memory == before.memory && m.general == before.general && m.other == before.other);
}
