//! Effects of system registers on instructions, and instructions that change them: not accessible to user space on the host.

mod emulated;

use emulated::Machine;
use stile_x86_decode::{CodeSize, Fault, Outcome, SegmentName, decode, execute};
use stile_x86_walk::ErrorCode;

const BASE: u64 = 0x1_0000;
/// Address of the GDT; operands are at the base.
const GDT: u64 = BASE + 0x400;
const RAX: usize = 0;
const RBX: usize = 3;
const RSP: usize = 4;
const RCX: usize = 1;
const RDI: usize = 7;
const AC: u64 = 1 << 18;

/// A change of the machine before an instruction, and the expected result.
type Change = fn(&mut Machine);
type Done = Result<Outcome, Fault>;

fn machine() -> Machine {
    let mut machine = Machine::new(BASE, &[0; 0x1000]);
    machine.general[RBX] = BASE;
    machine.general[RSP] = BASE + 0x800;
    machine.other.tables[0] = (GDT, 0xff);
    machine
}

fn put(machine: &mut Machine, at: u64, bytes: &[u8]) {
    let at = (at - BASE) as usize;
    machine.memory[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(machine: &Machine, at: u64) -> u64 {
    u64::from_le_bytes(machine.memory[(at - BASE) as usize..][..8].try_into().unwrap())
}

fn run_in(size: CodeSize, machine: &mut Machine, bytes: &[u8]) -> Result<Outcome, Fault> {
    let decoded = decode(bytes, size).unwrap_or_else(|e| panic!("{bytes:02x?}: {e:?}"));
    assert_eq!(usize::from(decoded.len()), bytes.len(), "{bytes:02x?}");
    execute(&decoded, machine, BASE + machine.general[RBX] % 0x1000)
}

fn run(machine: &mut Machine, bytes: &[u8]) -> Result<Outcome, Fault> {
    run_in(CodeSize::Bits64, machine, bytes)
}

/// A descriptor of a flat segment with this type, S, DPL and P, and with flags G, D and L.
fn descriptor(kind: u64, flags: u64) -> u64 {
    0xffff | 0xf << 48 | kind << 40 | flags << 52
}

#[test]
fn alignment_checks_in_user_mode() {
    for (privilege, cr0, flags, expected) in [
        (3, AC | 1, AC, Err(Fault::Alignment)),
        (0, AC | 1, AC, Ok(Outcome::Complete)),
        (3, 1, AC, Ok(Outcome::Complete)),
        (3, AC | 1, 0, Ok(Outcome::Complete)),
    ] {
        // MOV EAX, [RBX], of a device; LODSD and PUSH of memory.
        for bytes in [&[0x8b, 0x03][..], &[0xad], &[0x50]] {
            let mut m = machine();
            m.general[RBX] += 2;
            m.general[6] = m.general[RBX];
            m.general[RSP] += 2;
            (m.other.privilege, m.other.cr0) = (privilege, cr0);
            m.flags |= flags;
            assert_eq!(run(&mut m, bytes), expected, "{bytes:02x?} {privilege}");
        }
        // A byte is always aligned.
        let mut m = machine();
        m.general[RBX] += 1;
        (m.other.privilege, m.other.cr0) = (privilege, cr0);
        assert_eq!(run(&mut m, &[0x8a, 0x03]), Ok(Outcome::Complete));
    }
}

#[test]
fn vector_instructions_need_enabling() {
    const SSE: &[u8] = &[0x0f, 0x10, 0x03];
    const AVX: &[u8] = &[0xc5, 0xf8, 0x10, 0x03];
    const MMX: &[u8] = &[0x0f, 0x6f, 0x03];
    let no = Err(Fault::InvalidOpcode);
    let yes = Ok(Outcome::Complete);
    let cases: [(Change, [Done; 3]); 8] = [
        (|_| {}, [yes; 3]),
        (|m| m.other.cr0 |= 1 << 2, [no, yes, no]),
        (|m| m.other.cr0 |= 1 << 3, [Err(Fault::DeviceNotAvailable); 3]),
        (|m| m.other.cr4 &= !(1 << 9), [no, yes, yes]),
        (|m| m.other.cr4 &= !(1 << 18), [yes, no, yes]),
        (|m| m.other.xcr0 = 3, [yes, no, yes]),
        (|m| m.flags |= 1 << 17, [yes, no, yes]),
        (|m| m.other.floating_point_error = true, [yes, yes, Err(Fault::FloatingPoint)]),
    ];
    for (n, (change, expected)) in cases.into_iter().enumerate() {
        for (bytes, expected) in [SSE, AVX, MMX].into_iter().zip(expected) {
            let mut m = machine();
            change(&mut m);
            let before = m.other.clone();
            assert_eq!(run(&mut m, bytes), expected, "{n}: {bytes:02x?}");
            assert!(expected.is_ok() || m.other == before, "{n}: {bytes:02x?}");
        }
    }
}

#[test]
fn state_words_need_enabling() {
    /// FNSTCW, FLDCW, FNSTSW, STMXCSR, LDMXCSR.
    const WORDS: [&[u8]; 5] = [&[0xd9, 0x3b], &[0xd9, 0x2b], &[0xdd, 0x3b], &[0x0f, 0xae, 0x1b], &[0x0f, 0xae, 0x13]];
    let (no, yes, off) = (Err(Fault::InvalidOpcode), Ok(Outcome::Complete), Err(Fault::DeviceNotAvailable));
    let cases: [(Change, [Done; 5]); 6] = [
        (|_| {}, [yes; 5]),
        (|m| m.other.cr0 |= 1 << 2, [off, off, off, no, no]),
        (|m| m.other.cr0 |= 1 << 3, [off; 5]),
        (|m| m.other.cr4 &= !(1 << 9), [yes, yes, yes, no, no]),
        (|m| m.other.floating_point_error = true, [yes, Err(Fault::FloatingPoint), yes, yes, yes]),
        (|m| put(m, BASE, &[0, 0, 1]), [yes, yes, yes, yes, Err(Fault::Protection)]),
    ];
    for (n, (change, expected)) in cases.into_iter().enumerate() {
        for (bytes, expected) in WORDS.into_iter().zip(expected) {
            let mut m = machine();
            change(&mut m);
            let before = m.other.clone();
            assert_eq!(run(&mut m, bytes), expected, "{n}: {bytes:02x?}");
            assert!(expected.is_ok() || m.other == before, "{n}: {bytes:02x?}");
        }
    }
    for (n, (store, width)) in [(WORDS[0], 2), (WORDS[2], 2), (WORDS[3], 4)].into_iter().enumerate() {
        let mut m = machine();
        put(&mut m, BASE, &[0xee; 8]);
        assert_eq!(run(&mut m, store), yes);
        let mask = u64::MAX >> (64 - 8 * width);
        assert_eq!(word(&m, BASE), 0xeeee_eeee_eeee_eeee & !mask | u64::from(m.other.state[n]) & mask);
    }
    let mut m = machine();
    put(&mut m, BASE, &[0x7f, 0x12, 0, 0]);
    assert_eq!((run(&mut m, WORDS[1]), run(&mut m, WORDS[4])), (yes, yes));
    assert_eq!(m.other.state, [0x127f, 0x3800, 0x127f]);
}

#[test]
fn some_operands_must_be_aligned() {
    // MOVAPS, MOVNTDQ, VMOVAPS of 16 and 32 bytes, CMPXCHG16B.
    for (bytes, size) in [
        (&[0x0f, 0x28, 0x03][..], 16),
        (&[0x66, 0x0f, 0xe7, 0x03], 16),
        (&[0xc5, 0xf8, 0x28, 0x03], 16),
        (&[0xc5, 0xfc, 0x29, 0x03], 32),
        (&[0x48, 0x0f, 0xc7, 0x0b], 16),
    ] {
        for offset in [size / 2, size] {
            let mut m = machine();
            m.general[RBX] += offset;
            let expected = if offset == size { Ok(Outcome::Complete) } else { Err(Fault::Protection) };
            assert_eq!(run(&mut m, bytes), expected, "{bytes:02x?} at {offset}");
        }
    }
}

#[test]
fn jumps_through_memory() {
    let stack = BASE + 0x800;
    for (target, expected) in [(0x1234_5678_9abc, Ok(Outcome::Jump(0x1234_5678_9abc))), (1 << 60, Err(Fault::Protection))] {
        // JMP, CALL, and RET with the target on the stack.
        for (bytes, pushed) in [(&[0xff, 0x23][..], 0), (&[0xff, 0x13], 8)] {
            let mut m = machine();
            m.rip = 0x5000;
            put(&mut m, BASE, &u64::to_le_bytes(target));
            assert_eq!(run(&mut m, bytes), expected);
            let pushed = if expected.is_ok() { pushed } else { 0 };
            assert_eq!(m.general[RSP], stack - pushed);
            assert!(pushed == 0 || word(&m, stack - 8) == 0x5002);
        }
        let mut m = machine();
        put(&mut m, stack, &u64::to_le_bytes(target));
        // RET 24
        assert_eq!(run(&mut m, &[0xc2, 24, 0]), expected);
        assert_eq!(m.general[RSP], if expected.is_ok() { stack + 32 } else { stack });
    }
    // CALL of what is 16 bytes before it, and by a register.
    let mut m = machine();
    m.rip = 0x5000;
    assert_eq!(run(&mut m, &[0xe8, 0xeb, 0xff, 0xff, 0xff]), Ok(Outcome::Jump(0x4ff0)));
    m.general[RAX] = 0x7777;
    assert_eq!(run(&mut m, &[0xff, 0xd0]), Ok(Outcome::Jump(0x7777)));
    assert_eq!((word(&m, stack - 8), word(&m, stack - 16)), (0x5005, 0x5002));
    // 16-bit code: the target has 16 bits, wraps, and lies within the limit.
    let mut m = machine();
    m.rip = 0xfff0;
    m.segments[SegmentName::Cs as usize].limit = 0x7fff;
    assert_eq!(run_in(CodeSize::Bits16, &mut m, &[0xe8, 0x0d, 0x00]), Ok(Outcome::Jump(0)));
    assert_eq!(run_in(CodeSize::Bits16, &mut m, &[0xe8, 0x00, 0xf0]), Err(Fault::Protection));
}

#[test]
fn segment_loads_check_descriptors() {
    const PRESENT: u64 = 0x80;
    let user = 0x60;
    // (type with S, DPL and P; RPL; CPL; what ES, and what SS is)
    let selector = 0x10;
    let wrong = Err(Fault::Selector(selector));
    let yes = Ok(Outcome::Complete);
    let shadow = Ok(Outcome::Shadowed);
    let cases = [
        (0x12 | PRESENT, 0, 0, yes, shadow),
        (0x10 | PRESENT, 0, 0, yes, wrong),
        (0x1a | PRESENT, 0, 0, yes, wrong),
        // Execute-only code; a system segment; not present.
        (0x18 | PRESENT, 0, 0, wrong, wrong),
        (0x02 | PRESENT, 0, 0, wrong, wrong),
        (0x12, 0, 0, Err(Fault::NotPresent(selector)), Err(Fault::StackSegment(selector))),
        // Privileges: of the selector, of the code; none for conforming code.
        (0x12 | PRESENT, 3, 0, wrong, wrong),
        (0x12 | PRESENT, 0, 3, wrong, wrong),
        (0x12 | PRESENT | user, 3, 3, yes, shadow),
        (0x12 | PRESENT | user, 0, 0, yes, wrong),
        (0x1e | PRESENT, 3, 3, yes, wrong),
    ];
    for (kind, requested, privilege, es, ss) in cases {
        for (bytes, name, expected) in [(&[0x8e, 0x03], SegmentName::Es, es), (&[0x8e, 0x13], SegmentName::Ss, ss)] {
            let mut m = machine();
            m.other.privilege = privilege;
            put(&mut m, BASE, &u16::to_le_bytes(selector | requested));
            put(&mut m, GDT + 0x10, &u64::to_le_bytes(descriptor(kind, 0xc)));
            assert_eq!(run(&mut m, bytes), expected, "{name:?} {kind:x} {requested} {privilege}");
            let accessed = word(&m, GDT + 0x10) >> 40 & 1 != 0;
            assert_eq!(accessed, expected.is_ok());
            assert_eq!(m.other.selectors[name as usize], if expected.is_ok() { selector | requested } else { 0 });
            if expected.is_ok() {
                assert_eq!(m.other.loaded.map(|it| (it.limit, it.rights)), Some((0xffff_ffff, 0xc001 | kind as u32)));
            }
        }
    }
    // Beyond the table, an absent LDT, and null.
    for (selector, es, ss) in [
        (0x100, Err(Fault::Selector(0x100)), Err(Fault::Selector(0x100))),
        (0x14, Err(Fault::Selector(0x14)), Err(Fault::Selector(0x14))),
        (0, yes, shadow),
        (3, yes, Err(Fault::Protection)),
    ] {
        for (bytes, expected) in [(&[0x8e, 0x03], es), (&[0x8e, 0x13], ss)] {
            let mut m = machine();
            put(&mut m, BASE, &u16::to_le_bytes(selector));
            assert_eq!(run(&mut m, bytes), expected, "{selector:x} {bytes:02x?}");
        }
    }
    // SS may be null in 64-bit code only.
    assert_eq!(run_in(CodeSize::Bits32, &mut machine(), &[0x8e, 0x13]), Err(Fault::Protection));
    // Real mode uses no descriptors. LES AX, [BX], with a 16-bit address.
    let mut m = machine();
    m.other.cr0 = 0;
    m.segments[SegmentName::Ds as usize].base = BASE;
    m.general[RBX] = 0;
    put(&mut m, BASE, &[0x34, 0x12, 0x00, 0xb8]);
    assert_eq!(run_in(CodeSize::Bits16, &mut m, &[0xc4, 0x07]), Ok(Outcome::Complete));
    assert_eq!((m.general[RAX], m.segments[0].base, m.other.selectors[0]), (0x1234, 0xb_8000, 0xb800));
}

#[test]
fn far_jumps_keep_the_privilege() {
    let wrong = Err(Fault::Selector(0x10));
    let target = 0x1_2345_6789;
    // (type; G, D and L; privilege; what it is)
    let cases = [
        (0x9b, 0xa, 0, Ok(Outcome::Jump(target))),
        // Beyond the limit of 32-bit code.
        (0x9b, 0xc, 0, Err(Fault::Protection)),
        (0x9b, 0xe, 0, wrong),
        (0x93, 0xa, 0, wrong),
        (0xfb, 0xa, 0, wrong),
        (0x9b, 0xa, 3, wrong),
        (0x9f, 0xa, 3, Ok(Outcome::Jump(target))),
        (0x1b, 0xa, 0, Err(Fault::NotPresent(0x10))),
        // A call gate.
        (0x8c, 0, 0, Err(Fault::InvalidOpcode)),
    ];
    for (kind, flags, privilege, expected) in cases {
        let mut m = machine();
        m.other.privilege = privilege;
        put(&mut m, BASE, &u64::to_le_bytes(target));
        put(&mut m, BASE + 8, &[0x10, 0]);
        put(&mut m, GDT + 0x10, &u64::to_le_bytes(descriptor(kind, flags)));
        assert_eq!(run(&mut m, &[0x48, 0xff, 0x2b]), expected, "{kind:x} {flags:x} {privilege}");
        let selector = if expected.is_ok() { 0x10 | u16::from(privilege) } else { 0 };
        assert_eq!(m.other.selectors[SegmentName::Cs as usize], selector);
    }
    let mut m = machine();
    assert_eq!(run(&mut m, &[0x48, 0xff, 0x2b]), Err(Fault::Protection), "null");
}

#[test]
fn system_segments_need_privilege() {
    // LLDT and LTR of a descriptor of 16 bytes.
    for (digit, kind, busy) in [(0x13, 0x82, 0x82), (0x1b, 0x89, 0x8b)] {
        let bytes = [0x0f, 0x00, digit];
        let with = |change: Change| {
            let mut m = machine();
            put(&mut m, BASE, &[0x20, 0]);
            put(&mut m, GDT + 0x20, &u64::to_le_bytes(descriptor(kind, 0)));
            put(&mut m, GDT + 0x28, &[0x80, 0xff, 0xff, 0xff]);
            change(&mut m);
            (run(&mut m, &bytes), m)
        };
        let (done, m) = with(|_| {});
        assert_eq!(done, Ok(Outcome::Complete));
        assert_eq!(word(&m, GDT + 0x20) >> 40 & 0xff, busy);
        let loaded = m.other.loaded.unwrap();
        assert_eq!((loaded.base, loaded.rights), (0xffff_ff80_0000_0000, busy as u32));
        let wrong = Err(Fault::Selector(0x20));
        let cases: [(Change, Done); 7] = [
            (|m| m.other.privilege = 3, Err(Fault::Protection)),
            (|m| m.other.cr0 = 0, Err(Fault::InvalidOpcode)),
            (|m| put(m, BASE, &[0x24, 0]), Err(Fault::Selector(0x24))),
            (|m| put(m, GDT + 0x25, &[0x93]), wrong),
            (|m| m.other.tables[0].1 = 0x2e, wrong),
            // Not canonical.
            (|m| put(m, GDT + 0x28, &[0, 0, 0, 0x80]), wrong),
            (|m| m.other.tables[0].1 = 0x26, wrong),
        ];
        for (n, (change, expected)) in cases.into_iter().enumerate() {
            let (done, m) = with(change);
            assert_eq!((done, m.other.loaded), (expected, None), "{n}");
        }
        let (done, _) = with(|m| put(m, BASE, &[0, 0]));
        assert_eq!(done, if digit == 0x13 { Ok(Outcome::Complete) } else { Err(Fault::Protection) }, "null");
    }
}

#[test]
fn tables_and_status_words() {
    // LMSW sets and clears three bits, and sets PE.
    let mut m = machine();
    m.other.cr0 = 0x8005_0031;
    put(&mut m, BASE, &[0xfe, 0xff]);
    assert_eq!(run(&mut m, &[0x0f, 0x01, 0x33]), Ok(Outcome::Complete));
    assert_eq!(m.other.cr0, 0x8005_003f);
    put(&mut m, BASE, &[0, 0]);
    assert_eq!(run(&mut m, &[0x0f, 0x01, 0x33]), Ok(Outcome::Complete));
    assert_eq!(m.other.cr0, 0x8005_0031);
    // SMSW stores two bytes.
    put(&mut m, BASE, &[0xee; 4]);
    assert_eq!(run(&mut m, &[0x0f, 0x01, 0x23]), Ok(Outcome::Complete));
    assert_eq!(word(&m, BASE), 0xeeee_0031);
    // LIDT: all of the base, 32 bits, 24 bits.
    let pointer = [0x67, 0x45, 1, 2, 3, 4, 5, 6, 0, 0];
    for (size, bytes, base) in [
        (CodeSize::Bits64, &[0x0f, 0x01, 0x1b][..], 0x0605_0403_0201),
        (CodeSize::Bits32, &[0x0f, 0x01, 0x1b], 0x0403_0201),
        (CodeSize::Bits32, &[0x66, 0x0f, 0x01, 0x1b], 0x03_0201),
    ] {
        let mut m = machine();
        put(&mut m, BASE, &pointer);
        assert_eq!(run_in(size, &mut m, bytes), Ok(Outcome::Complete));
        assert_eq!(m.other.tables[1], (base, 0x4567));
        // SIDT [RBX]: what was loaded.
        put(&mut m, BASE, &[0; 10]);
        assert_eq!(run_in(size, &mut m, &[0x0f, 0x01, 0x0b]), Ok(Outcome::Complete));
        assert_eq!((word(&m, BASE) & 0xffff, word(&m, BASE + 2)), (0x4567, base));
    }
    // Not canonical; and not in user mode.
    let mut m = machine();
    put(&mut m, BASE, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
    assert_eq!(run(&mut m, &[0x0f, 0x01, 0x13]), Err(Fault::Protection));
    for (digit, umip, expected) in
        [(0x13, false, false), (0x33, false, false), (0x03, false, true), (0x03, true, false), (0x23, true, false)]
    {
        let mut m = machine();
        m.other.privilege = 3;
        m.other.cr4 |= u64::from(umip) << 11;
        let expected = if expected { Ok(Outcome::Complete) } else { Err(Fault::Protection) };
        assert_eq!(run(&mut m, &[0x0f, 0x01, digit]), expected, "{digit:x} {umip}");
    }
}

#[test]
fn selectors_are_stored() {
    let mut m = machine();
    m.other.selectors = [1, 2, 3, 4, 5, 6, 7, 8];
    put(&mut m, BASE, &[0xff; 4]);
    // MOV [RBX], GS with REX.W; SLDT; STR; PUSH FS.
    for (bytes, expected) in [(&[0x48, 0x8c, 0x2b][..], 6), (&[0x0f, 0x00, 0x03], 7), (&[0x0f, 0x00, 0x0b], 8)] {
        assert_eq!(run(&mut m, bytes), Ok(Outcome::Complete));
        assert_eq!(word(&m, BASE) as u32, 0xffff_0000 | expected);
    }
    assert_eq!(run(&mut m, &[0x0f, 0xa0]), Ok(Outcome::Complete));
    assert_eq!(word(&m, m.general[RSP]), 5);
}

#[test]
fn single_steps_stop_after_each_element() {
    let mut m = machine();
    (m.general[RCX], m.general[RDI]) = (3, BASE);
    m.flags |= 1 << 8;
    for left in [2, 1] {
        assert_eq!(run(&mut m, &[0xf3, 0xaa]), Ok(Outcome::Partial));
        assert_eq!(m.general[RCX], left);
    }
    assert_eq!(run(&mut m, &[0xf3, 0xaa]), Ok(Outcome::Complete));
    assert_eq!(m.general[RCX], 0);
}

#[test]
fn missing_second_page_faults_before_any_effect() {
    // Operands that cross the end of memory: MOVUPS, VMOVUPS of 32 bytes, CMPXCHG8B, MOVQ of MM0.
    for bytes in [&[0x0f, 0x11, 0x03][..], &[0xc5, 0xfc, 0x11, 0x03], &[0x0f, 0xc7, 0x0b], &[0x0f, 0x7f, 0x03]] {
        let mut m = machine();
        m.general[RBX] = BASE + 0xffc;
        let before = m.clone();
        let fault = stile_x86_walk::PageFault { linear: BASE + 0xffc, code: ErrorCode(ErrorCode::WRITE) };
        assert_eq!(run(&mut m, bytes), Err(Fault::Page(fault)), "{bytes:02x?}");
        assert_eq!((m.general, m.flags, m.memory, m.other), (before.general, before.flags, before.memory, before.other), "{bytes:02x?}");
    }
}
