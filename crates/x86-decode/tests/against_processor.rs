//! Every emulated instruction, compared with the host's processor on the same bytes, registers, flags and memory: all registers, defined
//! flags and memory must agree.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod emulated;
mod forms;
mod native;

use emulated::Machine;
use forms::{Form, Imm, Kind, Operand, forms};
use native::{ARENA, Processor, Registers, has_avx};
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand_like::Random;
use std::sync::LazyLock;
use stile_x86_decode::{CodeSize, Fault, Outcome, decode, execute};

mod rand_like {
    use proptest::prelude::RngCore;
    use proptest::test_runner::TestRng;

    /// The random values needed here.
    pub struct Random(pub TestRng);

    impl Random {
        pub fn below(&mut self, end: u64) -> u64 {
            self.0.next_u64() % end
        }

        pub fn bool(&mut self) -> bool {
            self.below(2) == 1
        }

        /// Random, or close to a value where flags change.
        pub fn value(&mut self) -> u64 {
            const EDGES: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0x7fff_ffff, 0x8000_0000, 0x8000_0000_0000_0000];
            match self.below(4) {
                0 => EDGES[self.below(10) as usize],
                1 => !EDGES[self.below(10) as usize],
                _ => self.0.next_u64(),
            }
        }

        pub fn fill(&mut self, bytes: &mut [u8]) {
            self.0.fill_bytes(bytes);
        }
    }
}

/// Number of cases of each form, and of forms that only move data.
const CASES: usize = 150;
const CASES_OF_MOVES: usize = 40;

const ARITHMETIC: u64 = 0x8d5;
const DF: u64 = 1 << 10;
/// Flags that may vary here: not TF, IF, AC and ID.
const FLAGS: u64 = ARITHMETIC | DF;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSP: usize = 4;
const RBP: usize = 5;
const RSI: usize = 6;
const RDI: usize = 7;

struct Case {
    bytes: Vec<u8>,
    before: Registers,
    memory: Box<[u8; ARENA]>,
    /// Location of the operand.
    operand: u64,
}

fn random() -> Random {
    Random(TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// The bytes of `form`, with random prefixes and registers; its operand is at RBX if it has one by ModRM.
fn encode(form: &Form, random: &mut Random, moffs: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(vex) = form.vex {
        let r = random.bool();
        let other = if vex.two { random.below(16) as u8 } else { 0 };
        bytes.extend([
            0xc4,
            u8::from(!r) << 7 | 0x60 | vex.map,
            u8::from(vex.w) << 7 | (!other & 15) << 3 | u8::from(vex.wide) << 2 | vex.pp,
        ]);
        bytes.extend(form.opcode);
        bytes.push((random.below(8) as u8) << 3 | RBX as u8);
        return bytes;
    }
    if form.operand_size && random.below(3) == 0 {
        bytes.push(0x66);
    }
    if form.string && random.below(4) != 0 {
        bytes.push(0xf2 | random.below(2) as u8);
    }
    if form.lock && random.bool() {
        bytes.push(0xf0);
    }
    bytes.extend(form.prefix);
    let w = form.rex_w || form.operand_size && random.bool();
    let r = matches!(form.operand, Operand::Register) && random.bool();
    let extra = matches!(form.operand, Operand::OpcodeRegister) && random.bool();
    if w || r || extra || random.bool() {
        bytes.push(0x40 | u8::from(w) << 3 | u8::from(r) << 2 | u8::from(extra));
    }
    let narrow = form.operand_size && bytes.contains(&0x66) && !w;
    bytes.extend(form.opcode);
    match form.operand {
        Operand::Register => bytes.push((random.below(8) as u8) << 3 | RBX as u8),
        Operand::Digit(digit) => bytes.push(digit << 3 | RBX as u8),
        Operand::OpcodeRegister => *bytes.last_mut().unwrap() |= random.below(8) as u8,
        Operand::Moffs => bytes.extend(moffs.to_le_bytes()),
        Operand::Implied => {}
    }
    if matches!(form.imm, Imm::Frame) {
        bytes.extend([random.below(128) as u8, 0, random.below(4) as u8]);
        return bytes;
    }
    let immediate = random.value().to_le_bytes();
    let count = match form.imm {
        Imm::None => 0,
        Imm::Byte => 1,
        Imm::Full if narrow => 2,
        Imm::Full | Imm::Frame => 4,
    };
    bytes.extend(&immediate[..count]);
    bytes
}

fn case(form: &Form, random: &mut Random, arena: u64) -> Case {
    const MIDDLE: usize = ARENA / 2;
    static PATTERN: LazyLock<[u8; ARENA]> = LazyLock::new(|| std::array::from_fn(|i| (i * 7 % 251) as u8));
    let mut memory = Box::new(*PATTERN);
    // In the middle: bit strings and string instructions need room on both sides.
    let operand = arena + MIDDLE as u64 - 64 + random.below(128);
    // A split lock stalls the whole machine, and kernels throttle its user.
    let operand = if form.lock { operand & !7 } else { operand } & !(form.aligned - 1);
    random.fill(&mut memory[MIDDLE - 64..MIDDLE + 128]);
    let alike = form.string && form.compares;
    if alike {
        // Equal elements, so that comparisons continue for a while.
        memory[MIDDLE - 512..MIDDLE + 512].fill(0x5a);
        for _ in 0..random.below(4) {
            memory[MIDDLE - 64 + random.below(192) as usize] = 0;
        }
    }
    let mut general: [u64; 16] = std::array::from_fn(|_| random.value());
    general[RBX] = operand;
    general[RSP] = arena + ARENA as u64 - 512 + random.below(64);
    let mut bytes = encode(form, random, operand);
    let mut value = [0; 8];
    value.copy_from_slice(&memory[(operand - arena) as usize..][..8]);
    let value = u64::from_le_bytes(value);
    if form.compares && random.bool() {
        general[RAX] = value;
    }
    if alike && random.bool() {
        general[RAX] = 0x5a5a_5a5a_5a5a_5a5a;
    }
    if form.kind == Kind::Pair && random.bool() {
        let (low, high) = if form.rex_w { (0, 8) } else { (0, 4) };
        let word = |at: usize| u64::from_le_bytes(memory[(operand - arena) as usize + at..][..8].try_into().unwrap());
        // Upper halves are ignored.
        (general[RAX], general[RDX]) = (word(low), word(high));
    }
    if form.kind == Kind::Divide {
        // Often small enough to avoid overflow.
        general[RDX] = [0, 1, u64::MAX, general[RDX]][random.below(4) as usize];
        general[RAX] = [general[RAX], general[RAX] & 0xff, general[RAX] & 0x7ff, general[RAX]][random.below(4) as usize];
    }
    if form.kind == Kind::Translate {
        general[RBX] = operand - (general[RAX] & 0xff);
    }
    if form.stack {
        general[RBP] = general[RSP] + 64 + random.below(64);
    }
    if form.bit_string {
        // RBX or RSP would be bit numbers far away: flip the register field's middle bit.
        if !bytes.iter().any(|byte| byte & 0xf4 == 0x44) && matches!(bytes[bytes.len() - 1] >> 3, 3 | 4) {
            *bytes.last_mut().unwrap() ^= 2 << 3;
        }
        // Within 600 bits to either side; bits above the operand's width are ignored.
        for register in (0..16).filter(|&register| register != RBX && register != RSP) {
            general[register] = random.below(1200).wrapping_sub(600);
        }
    }
    if form.string {
        general[RSI] = operand - 32 + random.below(64);
        general[RDI] = operand;
        general[RCX] = random.below(40);
    }
    let flags = random.value() & FLAGS | 0x202;
    let flags = if form.string { flags } else { flags & !DF };
    let vectors = std::array::from_fn(|_| std::array::from_fn(|_| random.value()));
    let mmx = std::array::from_fn(|_| random.value());
    Case { bytes, before: Registers { general, flags, vectors, mmx }, memory, operand }
}

/// Returns the operand's size in bits.
fn bits(form: &Form, bytes: &[u8]) -> u32 {
    let w = bytes.iter().take_while(|byte| **byte != form.opcode[0]).any(|byte| byte & 0xf8 == 0x48);
    match (form.operand_size, w, bytes.contains(&0x66)) {
        (false, ..) => 8,
        (_, true, _) => 64,
        (_, _, true) => 16,
        _ => 32,
    }
}

/// Returns the flags that a shift leaves undefined; none if it preserves all.
fn undefined_by_shift(form: &Form, bytes: &[u8], before: &Registers) -> Option<u64> {
    const CF: u64 = 1;
    const AF: u64 = 1 << 4;
    const OF: u64 = 1 << 11;
    let bits = bits(form, bytes);
    let opcode = *form.opcode.last().unwrap();
    let count = match (form.imm, opcode) {
        (Imm::Byte, _) => bytes[bytes.len() - 1].into(),
        (_, 0xd0 | 0xd1) => 1,
        _ => before.general[RCX],
    } & if bits == 64 { 63 } else { 31 };
    let rotates = matches!(form.operand, Operand::Digit(0..4));
    let signed = matches!(form.operand, Operand::Digit(7));
    if form.kind == Kind::DoubleShift && count > bits.into() {
        return None;
    }
    let of = if count > 1 { OF } else { 0 };
    let af = if count > 0 && !rotates { AF } else { 0 };
    let cf = if count >= bits.into() && !rotates && !signed && form.kind == Kind::Shift { CF } else { 0 };
    Some(of | af | cf)
}

/// Whether the quotient of a division fits its register.
fn divides(form: &Form, bytes: &[u8], before: &Registers, divisor: u64) -> bool {
    let bits = bits(form, bytes);
    let mask = u64::MAX >> (64 - bits);
    let high = if bits == 8 { before.general[RAX] >> 8 } else { before.general[RDX] } & mask;
    let dividend = u128::from(high) << bits | u128::from(before.general[RAX] & mask);
    if form.name.starts_with("div") {
        return (divisor & mask) as u128 != 0 && dividend / u128::from(divisor & mask) <= mask.into();
    }
    let dividend = (dividend << (128 - 2 * bits)) as i128 >> (128 - 2 * bits);
    let divisor = i128::from((divisor << (64 - bits)) as i64 >> (64 - bits));
    let limit = 1_i128 << (bits - 1);
    divisor != 0 && dividend.checked_div(divisor).is_some_and(|quotient| (-limit..limit).contains(&quotient))
}

#[test]
fn instructions_agree_with_processor() {
    let mut random = random();
    let mut processor = Processor::new();
    let arena = processor.arena();
    for form in &forms(has_avx()) {
        let mut ran = 0;
        let moves = matches!(form.name, "vector" | "cmovcc r, m" | "setcc m8");
        let cases = if moves { CASES_OF_MOVES } else { CASES };
        for _ in 0..cases {
            let Case { bytes, before, mut memory, operand } = case(form, &mut random, arena);
            let mut machine = Machine::new(arena, &memory[..]);
            (machine.general, machine.flags) = (before.general, before.flags);
            (machine.other.vectors, machine.other.mmx) = (before.vectors, before.mmx);
            let context = || format!("{} {bytes:02x?} with {before:x?}", form.name);
            let decoded = decode(&bytes, CodeSize::Bits64).unwrap_or_else(|e| panic!("{}: {e:?}", context()));
            assert_eq!(usize::from(decoded.len()), bytes.len(), "{}", context());
            // The processor executes a repeated instruction to its end.
            let outcome = loop {
                match execute(&decoded, &mut machine, operand) {
                    Ok(Outcome::Partial) => {}
                    outcome => break outcome,
                }
            };
            let value = u64::from_le_bytes(memory[(operand - arena) as usize..][..8].try_into().unwrap());
            if form.kind == Kind::Divide && !divides(form, &bytes, &before, value) {
                assert_eq!(outcome, Err(Fault::Divide), "{}", context());
                assert_eq!((machine.general, machine.flags), (before.general, before.flags), "{}", context());
                continue;
            }
            assert_eq!(outcome, Ok(Outcome::Complete), "{}", context());
            let undefined = match form.kind {
                Kind::Shift | Kind::DoubleShift => undefined_by_shift(form, &bytes, &before),
                _ => Some(form.undefined),
            };
            let Some(undefined) = undefined else { continue };
            ran += 1;
            let after = processor.run(&bytes, &before, &mut memory);
            assert_eq!(machine.general, after.general, "registers after {}", context());
            let defined = FLAGS & !undefined;
            assert_eq!(machine.flags & defined, after.flags & defined, "flags after {}", context());
            assert!(machine.memory == memory[..], "memory after {}", context());
            let seen = if has_avx() { 4 } else { 2 };
            for (ours, its) in machine.other.vectors.iter().zip(&after.vectors) {
                assert_eq!(ours[..seen], its[..seen], "vector registers after {}", context());
            }
            assert_eq!(machine.other.mmx, after.mmx, "MMX registers after {}", context());
            let uses_device = !form.string && !form.stack && !form.bit_string && operand % 4096 + 32 <= 4096;
            assert!(!uses_device || machine.linear_accesses == 0 && machine.device_accesses > 0, "{}", context());
        }
        assert!(ran > cases / 5, "{} ran {ran} times", form.name);
    }
}

/// Random addressing forms, compared with the address that LEA computes.
#[test]
fn addresses_agree_with_processor() {
    const ADDRESS_SIZE: u8 = 0x67;
    let mut random = random();
    let mut processor = Processor::new();
    let arena = processor.arena();
    let rip = processor.rip();
    let mut memory = Box::new([0; ARENA]);
    for _ in 0..20_000 {
        let narrow = random.bool();
        let rex = 0x48 | random.below(8) as u8;
        let mut tail = [0; 6];
        random.fill(&mut tail);
        // The destination is a register that differs from RSP, and the operand is in memory.
        tail[0] = tail[0] & 0x3f | (random.below(3) as u8) << 6;
        let encode = |opcode: u8| {
            let mut bytes = Vec::new();
            if narrow {
                bytes.push(ADDRESS_SIZE);
            }
            bytes.extend([rex, opcode]);
            bytes.extend(tail);
            bytes
        };
        let decoded = decode(&encode(0x8b), CodeSize::Bits64).expect("a load");
        let length = usize::from(decoded.len());
        let before = Registers { general: std::array::from_fn(|_| random.value()), flags: 0x202, ..Registers::default() };
        let destination = usize::from(tail[0] >> 3 & 7 | (rex & 4) << 1);
        let after = processor.run(&encode(0x8d)[..length], &before, &mut memory);
        let address = after.general[destination];
        let mut machine = Machine::new(arena, &[]);
        (machine.general, machine.rip) = (before.general, rip);
        // A load from there faults and reports the address, unless it is not canonical.
        let expected = (address << 16) as i64 >> 16 == address as i64
            && (address.wrapping_add(7) << 16) as i64 >> 16 == address.wrapping_add(7) as i64;
        match execute(&decoded, &mut machine, address ^ 0x800) {
            Err(stile_x86_decode::Fault::Page(fault)) => assert_eq!((fault.linear, expected), (address, true), "{:02x?}", encode(0x8b)),
            Err(stile_x86_decode::Fault::Protection | stile_x86_decode::Fault::Stack) => assert!(!expected, "{:02x?}", encode(0x8b)),
            other => panic!("{other:?} for {:02x?}", encode(0x8b)),
        }
    }
}
