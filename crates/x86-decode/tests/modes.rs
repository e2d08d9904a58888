//! Cases that the host's processor cannot run in user space: 16-bit and 32-bit code, segments, faults, page-crossing operands, long
//! repetitions.

mod emulated;

use emulated::Machine;
use stile_x86_decode::{CodeSize, Fault, Outcome, Segment, SegmentName, Undecoded, decode, execute};
use stile_x86_walk::ErrorCode;

const BASE: u64 = 0x1_0000;
const SIZE: usize = 0x2000;
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSP: usize = 4;
const RBP: usize = 5;
const RSI: usize = 6;
const RDI: usize = 7;

fn machine() -> Machine {
    let memory: Vec<u8> = (0..SIZE).map(|i| (i * 13 % 255) as u8).collect();
    Machine::new(BASE, &memory)
}

fn run(machine: &mut Machine, bytes: &[u8], size: CodeSize, exit: u64) -> Result<Outcome, Fault> {
    let decoded = decode(bytes, size).unwrap_or_else(|e| panic!("{bytes:02x?}: {e:?}"));
    assert_eq!(usize::from(decoded.len()), bytes.len(), "{bytes:02x?}");
    execute(&decoded, machine, exit)
}

fn page_fault(linear: u64, write: bool) -> Result<Outcome, Fault> {
    let code = ErrorCode(if write { ErrorCode::WRITE } else { 0 });
    Err(Fault::Page(stile_x86_walk::PageFault { linear, code }))
}

/// Outside 64-bit mode linear addresses have 32 bits; in it, CS has no base.
#[test]
fn address_of_an_instruction() {
    for (size, expected) in [(CodeSize::Bits16, 0x1000), (CodeSize::Bits32, 0x1000), (CodeSize::Bits64, 0x2000)] {
        assert_eq!(size.linear(0x2000, || 0xffff_f000), expected, "{size:?}");
    }
}

/// The eight forms of ModRM with 16-bit addresses ("16-Bit Addressing Forms with the ModR/M Byte").
#[test]
fn addresses_of_16_bits() {
    let terms: [&[usize]; 8] = [&[RBX, RSI], &[RBX, RDI], &[RBP, RSI], &[RBP, RDI], &[RSI], &[RDI], &[RBP], &[RBX]];
    for (form, terms) in terms.into_iter().enumerate() {
        for (modrm, tail, displacement) in [(0x00, &[][..], 0), (0x40, &[0x85][..], 0xff85_u64), (0x80, &[0x34, 0x92][..], 0x9234)] {
            let plain = form == 6 && modrm == 0;
            let (tail, terms) = if plain { (&[0x34, 0x92][..], &[][..]) } else { (tail, terms) };
            let displacement = if plain { 0x9234 } else { displacement };
            let mut bytes = vec![0x8a, modrm | form as u8];
            bytes.extend(tail);
            for (size, prefix) in [(CodeSize::Bits16, None), (CodeSize::Bits32, Some(0x67))] {
                let mut m = Machine::new(0, &[]);
                m.general = std::array::from_fn(|i| 0xabcd_0000 + 0x1357 * (i as u64 + 3));
                let sum = terms.iter().map(|&r| m.general[r]).sum::<u64>() + displacement;
                let on_stack = terms.contains(&RBP);
                for segment in &mut m.segments {
                    segment.base = 0x10_0000;
                }
                m.segments[SegmentName::Ss as usize].base = 0x20_0000;
                let bytes: Vec<u8> = prefix.into_iter().chain(bytes.iter().copied()).collect();
                let linear = (sum & 0xffff) + if on_stack { 0x20_0000 } else { 0x10_0000 };
                assert_eq!(run(&mut m, &bytes, size, 0x800 ^ linear), page_fault(linear, false), "{bytes:02x?}");
            }
        }
    }
}

#[test]
fn addresses_wrap_in_32_bits() {
    let mut m = machine();
    m.general[RBX] = 0xffff_fff0;
    m.general[RCX] = 0x10;
    for segment in &mut m.segments {
        segment.base = 0xffff_0000;
    }
    // mov eax, [ebx + ecx * 2 + 8]
    assert_eq!(run(&mut m, &[0x8b, 0x44, 0x4b, 8], CodeSize::Bits32, 0), page_fault(0xffff_0018, false));
    m.segments[SegmentName::Ds as usize].base = 0xffff_fff0;
    assert_eq!(run(&mut m, &[0x8b, 0x44, 0x4b, 8], CodeSize::Bits32, 0), page_fault(8, false));
    // With FS's base, in 64-bit mode: fs:[ebx + 0x20]
    m.segments[SegmentName::Fs as usize].base = 0x1_0000_0000;
    assert_eq!(run(&mut m, &[0x64, 0x67, 0x8b, 0x43, 0x20], CodeSize::Bits64, 0), page_fault(0x1_0000_0010, false));
    // Other segments have no base in 64-bit mode.
    assert_eq!(run(&mut m, &[0x2e, 0x8b, 0x43, 0x10], CodeSize::Bits64, 0x800), page_fault(0x1_0000_0000, false));
}

#[test]
fn real_mode_reaches_devices_through_segments() {
    let mut m = machine();
    m.segments = [Segment::from_vmcs(0x1000, 0xffff, 0x93, false); 6];
    m.segments[SegmentName::Es as usize].base = 0xf000;
    m.general[RBX] = 0x1100;
    m.general[RAX] = 0x1234_5678_9abc_def0;
    // mov es:[bx], ax
    assert_eq!(run(&mut m, &[0x26, 0x89, 0x07], CodeSize::Bits16, 0x1_0100), Ok(Outcome::Complete));
    assert_eq!(m.memory[0x100..0x102], [0xf0, 0xde]);
    assert_eq!((m.device_accesses, m.linear_accesses), (1, 0));
    // mov ecx, es:[bx] with both size prefixes: 66, and 67 with EBX.
    assert_eq!(run(&mut m, &[0x26, 0x66, 0x67, 0x8b, 0x0b], CodeSize::Bits16, 0x1_0100), Ok(Outcome::Complete));
    assert_eq!(m.general[RCX], u64::from(u32::from_le_bytes(m.memory[0x100..0x104].try_into().unwrap())));
}

#[test]
fn segment_limits_and_rights() {
    let wrong_page = 0x800;
    let data = |limit, rights| Segment::from_vmcs(BASE, limit, rights, true);
    let cases = [
        // (DS, offset, load, store)
        (data(0xfff, 0xc093), 0xffc, None, None),
        (data(0xfff, 0xc093), 0xffd, Some(Fault::Protection), Some(Fault::Protection)),
        (data(0xfff, 0xc091), 0x10, None, Some(Fault::Protection)),
        // Execute-only and readable code.
        (data(0xfff, 0xc099), 0x10, Some(Fault::Protection), Some(Fault::Protection)),
        (data(0xfff, 0xc09b), 0x10, None, Some(Fault::Protection)),
        // Expand-down.
        (data(0xfff, 0xc097), 0xfff, Some(Fault::Protection), Some(Fault::Protection)),
        (data(0xfff, 0xc097), 0x1000, None, None),
        (data(0xff, 0x8097), 0xffff, Some(Fault::Protection), Some(Fault::Protection)),
        // Unusable.
        (data(0xffff_ffff, 0x1_c093), 0x10, Some(Fault::Protection), Some(Fault::Protection)),
    ];
    for (i, (segment, offset, load, store)) in cases.into_iter().enumerate() {
        for (opcode, fault) in [(0x8b, load), (0x89, store)] {
            let mut m = machine();
            m.segments[SegmentName::Ds as usize] = segment;
            m.general[RBX] = offset;
            let expected = fault.map_or(Ok(Outcome::Complete), Err);
            assert_eq!(run(&mut m, &[opcode, 0x03], CodeSize::Bits32, wrong_page), expected, "{i}: {opcode:x}");
        }
    }
    // EBP-based addresses use SS.
    let mut m = machine();
    m.segments[SegmentName::Ss as usize] = data(0xf, 0xc093);
    m.general[RBP] = 0x10;
    assert_eq!(run(&mut m, &[0x8b, 0x45, 0], CodeSize::Bits32, wrong_page), Err(Fault::Stack));
    // In 64-bit mode there is no limit, but non-canonical addresses fault.
    m.general[RBP] = 1 << 47;
    m.general[RBX] = (1 << 47) - 2;
    assert_eq!(run(&mut m, &[0x8b, 0x45, 0], CodeSize::Bits64, wrong_page), Err(Fault::Stack));
    assert_eq!(run(&mut m, &[0x8b, 0x03], CodeSize::Bits64, wrong_page), Err(Fault::Protection));
}

#[test]
fn page_crossing_operands_use_both_pages() {
    for (offset, device) in [(0xff8, true), (0xffc, true), (0xffd, false), (0xfff, false)] {
        let mut m = machine();
        m.general[RBX] = BASE + offset;
        // The exit reports the page of the first or of the second part.
        for exit in [BASE + offset, BASE + 0x1000] {
            let mut m = m.clone();
            let at = offset as usize;
            assert_eq!(run(&mut m, &[0x8b, 0x03], CodeSize::Bits64, exit), Ok(Outcome::Complete));
            let expected = u32::from_le_bytes(m.memory[at..at + 4].try_into().unwrap());
            assert_eq!(m.general[RAX], expected.into(), "{offset:x}");
            assert_eq!(m.device_accesses == 1, device && exit == BASE + offset, "{offset:x} {exit:x}");
        }
    }
}

#[test]
fn faults_change_nothing() {
    // Each with RBX, RDI, RSP and RBP outside of memory in turn: add, xadd, cmpxchg, bts, xchg, stos, movs, push, pop; shl, shrd, mul, div,
    // movbe, setc, cmovc, cmpxchg8b, cmps, call, ret, enter, leave, movups both ways.
    let instructions: [&[u8]; 25] = [
        &[0x01, 0x03],
        &[0x0f, 0xc1, 0x03],
        &[0x0f, 0xb1, 0x03],
        &[0x0f, 0xab, 0x03],
        &[0x87, 0x03],
        &[0xab],
        &[0xa5],
        &[0xff, 0x33],
        &[0x8f, 0x03],
        &[0x5b],
        &[0xd3, 0x23],
        &[0x0f, 0xad, 0x03],
        &[0xf7, 0x23],
        &[0xf7, 0x33],
        &[0x0f, 0x38, 0xf0, 0x03],
        &[0x0f, 0x92, 0x03],
        &[0x0f, 0x42, 0x03],
        &[0x0f, 0xc7, 0x0b],
        &[0xa7],
        &[0xff, 0x13],
        &[0xc3],
        &[0xc8, 0x20, 0x00, 0x03],
        &[0xc9],
        &[0x0f, 0x10, 0x03],
        &[0x0f, 0x11, 0x03],
    ];
    for bytes in instructions {
        for register in [RBX, RDI, RSP, RBP] {
            let mut m = machine();
            m.general[RAX] = 1;
            m.general[RCX] = 5;
            for pointer in [RBX, RSI, RDI, RSP, RBP] {
                m.general[pointer] = BASE + 0x100 * pointer as u64;
            }
            m.general[register] = 0x1000;
            let before = m.clone();
            let result = run(&mut m, bytes, CodeSize::Bits64, 0x800);
            if let Err(fault) = result {
                assert!(matches!(fault, Fault::Page(_) | Fault::Divide | Fault::Protection));
                assert_eq!((m.general, m.flags, m.other), (before.general, before.flags, before.other), "{bytes:02x?}");
                // ENTER writes its frame before its final check.
                assert!(m.memory == before.memory || bytes[0] == 0xc8, "{bytes:02x?}");
            }
        }
    }
}

/// The write of a read-modify-write access must fault, as a write, before the device is read.
#[test]
fn read_modify_write_faults_as_write() {
    let mut m = machine();
    m.general[RBX] = 0x1000;
    assert_eq!(run(&mut m, &[0x01, 0x03], CodeSize::Bits64, 0x800), page_fault(0x1000, true));
    assert_eq!(run(&mut m, &[0x39, 0x03], CodeSize::Bits64, 0x800), page_fault(0x1000, false));
}

#[test]
fn long_repetitions_are_divided() {
    let mut m = machine();
    m.general[RDI] = BASE + 8;
    m.general[RCX] = 1000;
    m.general[RAX] = 0x55;
    let mut parts = 1;
    while run(&mut m, &[0xf3, 0xaa], CodeSize::Bits64, BASE + 8) == Ok(Outcome::Partial) {
        parts += 1;
        assert!(parts <= 125);
    }
    assert_eq!(parts, 125, "1000 elements, 8 at a time");
    assert_eq!((m.general[RCX], m.general[RDI]), (0, BASE + 1008));
    assert!(m.memory[8..1008].iter().all(|&byte| byte == 0x55));
    assert_ne!((m.memory[7], m.memory[1008]), (0x55, 0x55));
    // A fault in the middle preserves the completed elements.
    m.general[RDI] = BASE + SIZE as u64 - 8;
    m.general[RCX] = 10;
    assert_eq!(run(&mut m, &[0xf3, 0xab], CodeSize::Bits64, BASE), page_fault(BASE + SIZE as u64, true));
    assert_eq!((m.general[RCX], m.general[RDI]), (8, BASE + SIZE as u64));
    // A count of 0.
    m.general[RCX] = 0x1_0000_0000;
    assert_eq!(run(&mut m, &[0xf3, 0x67, 0xab], CodeSize::Bits64, BASE), Ok(Outcome::Complete));
}

#[test]
fn string_registers_follow_the_address_size() {
    let mut m = machine();
    m.segments = [Segment::from_vmcs(BASE, 0xffff, 0x93, false); 6];
    m.segments[SegmentName::Fs as usize].base = BASE + 0x1000;
    m.general[RSI] = 0xaaaa_0010;
    m.general[RDI] = 0xbbbb_0000;
    m.general[RCX] = 0xcccc_0002;
    m.flags |= 1 << 10;
    m.general[RDI] |= 2;
    // rep movsw es:[di], fs:[si], downwards
    let from = m.memory[0x100e..0x1012].to_vec();
    assert_eq!(run(&mut m, &[0x64, 0xf3, 0xa5], CodeSize::Bits16, BASE), Ok(Outcome::Complete));
    assert_eq!(m.memory[0..4], from);
    assert_eq!((m.general[RSI], m.general[RDI], m.general[RCX]), (0xaaaa_000c, 0xbbbb_fffe, 0xcccc_0000));
}

#[test]
fn stacks_of_each_width() {
    let mut m = machine();
    let stack = |limit, rights| Segment::from_vmcs(BASE, limit, rights, true);
    m.general[RDX] = 0x1122_3344_5566_7788;
    // A 16-bit stack that wraps, SP from 0 to 0xfffe: with a limit that forbids it, then with one that allows it.
    m.segments[SegmentName::Ss as usize] = stack(0x1fff, 0x93);
    m.general[RSP] = 0xdead_0000;
    assert_eq!(run(&mut m, &[0x52], CodeSize::Bits16, BASE), Err(Fault::Stack));
    m.general[RSP] = 0xdead_0102;
    assert_eq!(run(&mut m, &[0x52], CodeSize::Bits16, BASE), Ok(Outcome::Complete));
    assert_eq!((m.general[RSP], &m.memory[0x100..0x102]), (0xdead_0100, &[0x88, 0x77][..]));
    // The stack in 32-bit code: pushes four bytes, moves SP.
    assert_eq!(run(&mut m, &[0x52], CodeSize::Bits32, BASE), Ok(Outcome::Complete));
    assert_eq!((m.general[RSP], &m.memory[0xfc..0x100]), (0xdead_00fc, &[0x88, 0x77, 0x66, 0x55][..]));
    // A 32-bit stack: ESP; the upper half of RSP is cleared.
    m.segments[SegmentName::Ss as usize] = stack(0x1fff, 0x4093);
    m.general[RSP] = 0xdead_0000_0100;
    assert_eq!(run(&mut m, &[0x59], CodeSize::Bits32, BASE), Ok(Outcome::Complete));
    assert_eq!((m.general[RSP], m.general[RCX] & 0xffff), (0x104, 0x7788));
    // pop [esp]: the address uses ESP after the pop.
    let word = m.memory[0x104..0x108].to_vec();
    assert_eq!(run(&mut m, &[0x8f, 0x04, 0x24], CodeSize::Bits32, BASE + 0x108), Ok(Outcome::Complete));
    assert_eq!((m.general[RSP], &m.memory[0x108..0x10c]), (0x108, &word[..]));
}

#[test]
fn undecoded_instructions_have_a_reason() {
    let long = [0x66; 15];
    let cases: [(&[u8], CodeSize, Undecoded); 24] = [
        (&[], CodeSize::Bits64, Undecoded::Truncated),
        (&[0x8b], CodeSize::Bits64, Undecoded::Truncated),
        (&[0x8b, 0x04, 0x25, 0, 0, 0], CodeSize::Bits64, Undecoded::Truncated),
        (&long, CodeSize::Bits64, Undecoded::TooLong),
        (&[0x06, 0], CodeSize::Bits64, Undecoded::Invalid),
        // LOCK without a memory operand that is written.
        (&[0xf0, 0x8b, 0x03], CodeSize::Bits64, Undecoded::Invalid),
        (&[0xf0, 0x01, 0xc3], CodeSize::Bits64, Undecoded::Invalid),
        // UD0, UD2, registers only, an immediate of 64 bits, SMSW EAX, MOV to DR6, a jump; LEA, a long NOP, INVLPG and PREFETCHNTA.
        (&[0x0f, 0xff, 0xff], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x0b], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x8b, 0xc3], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x48, 0xb9, 1, 2, 3, 4, 5, 6, 7, 8], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x01, 0xe0], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x23, 0xf0], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0xeb, 0x10], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x8d, 0x03], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x1f, 0x03], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x01, 0x3b], CodeSize::Bits64, Undecoded::NoAccess),
        (&[0x0f, 0x18, 0x03], CodeSize::Bits64, Undecoded::NoAccess),
        // A descriptor, PAE's pointers, a TSS's map of ports; the x87, SSE's arithmetic.
        (&[0x8e, 0xd8], CodeSize::Bits64, Undecoded::Unsupported),
        (&[0x0f, 0x22, 0xd8], CodeSize::Bits64, Undecoded::Unsupported),
        (&[0xec], CodeSize::Bits64, Undecoded::Unsupported),
        (&[0xe6, 0x80], CodeSize::Bits64, Undecoded::Unsupported),
        (&[0xd9, 0x03], CodeSize::Bits64, Undecoded::Unsupported),
        (&[0xf2, 0x0f, 0x58, 0x03], CodeSize::Bits64, Undecoded::Unsupported),
    ];
    for (bytes, size, expected) in cases {
        assert_eq!(decode(bytes, size), Err(expected), "{bytes:02x?}");
    }
}
