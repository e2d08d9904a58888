//! Random changes of a guest's code and tables, during which both cache schemes are compared with uncached decoding.

use super::guest::{CODE, DIRECTORY, Guest, PAGE, ROOT_32, ROOTS, TABLE_32, TABLES};
use stile_x86_decode::cache::{Counters, Protect, Verify};
use stile_x86_decode::{Code, CodeSize, Context};
use stile_x86_walk::{Features, Paging, Registers};

pub const FEATURES: Features = Features { physical_bits: 39, page_1g: true, pse36: true };

/// Instructions of many lengths; some decode differently in other code sizes.
pub const INSTRUCTIONS: [&[u8]; 18] = [
    &[0x8b, 0x07],
    &[0x89, 0x07],
    &[0x8b, 0x87, 0x20, 0x00, 0x00, 0x00],
    &[0x89, 0x04, 0x25, 0xb0, 0x00, 0xe0, 0xfe],
    &[0x48, 0x8b, 0x40, 0x08],
    &[0x67, 0x8b, 0x00],
    &[0xa1, 1, 2, 3, 4, 5, 6, 7, 8],
    &[0x66, 0xc7, 0x84, 0x48, 1, 2, 3, 4, 5, 6],
    &[0x48, 0xc7, 0x84, 0xc8, 1, 2, 3, 4, 5, 6, 7, 8],
    &[0xf3, 0xab],
    &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x8b, 0x07],
    &[0xff, 0xff],
    // LDS or a VEX prefix; MOVBE, CMPXCHG16B, a shift, RET, and a move of segment registers.
    &[0xc5, 0xfe, 0x6f, 0x07],
    &[0x0f, 0x38, 0xf0, 0x07],
    &[0xf0, 0x48, 0x0f, 0xc7, 0x0f],
    &[0xc1, 0xa7, 0x20, 0x00, 0x00, 0x00, 0x05],
    &[0xc2, 0x08, 0x00],
    &[0x8e, 0x1f],
];

/// A guest action, or a lookup.
#[derive(Clone, Debug)]
pub enum Op {
    Code { page: u64, offset: u64, instruction: usize },
    Byte { page: u64, offset: u64, more: u64, value: u8 },
    Map { table: usize, index: u64, page: u64, rights: u64 },
    Table { which: usize },
    Root { which: usize, rights: u64 },
    Large { on: bool },
    Find { mode: usize, page: u64, offset: u64, user: bool },
}

pub const MODES: usize = 9;

pub fn mode(mode: usize) -> (Registers, CodeSize) {
    const PG: u64 = 1 << 31;
    const PAE: u64 = 1 << 5;
    const SMEP: u64 = 1 << 20;
    const LMA: u64 = 1 << 10;
    const NXE: u64 = 1 << 11;
    let long = Registers { cr0: PG, cr3: ROOTS[0] * PAGE, cr4: PAE, efer: LMA | NXE, pdpte: [0; 4] };
    let pae = Registers { efer: 0, pdpte: [DIRECTORY * PAGE + 1; 4], ..long };
    let narrow = Registers { cr4: 0, efer: 0, cr3: ROOT_32 * PAGE, ..long };
    match mode {
        0 => (long, CodeSize::Bits64),
        1 => (Registers { cr3: ROOTS[1] * PAGE, ..long }, CodeSize::Bits64),
        2 => (Registers { cr4: PAE | SMEP, ..long }, CodeSize::Bits64),
        3 => (Registers { efer: LMA, ..long }, CodeSize::Bits64),
        4 => (long, CodeSize::Bits32),
        5 => (pae, CodeSize::Bits32),
        6 => (narrow, CodeSize::Bits32),
        7 => (narrow, CodeSize::Bits16),
        _ => (Registers::default(), CodeSize::Bits16),
    }
}

/// Performs the operations. Panics if a cache disagrees with uncached decoding.
pub fn compare(ops: impl IntoIterator<Item = Op>) {
    let mut guest = Guest::new();
    let (mut verify, counters, mut protect) = (Verify::new(), Counters::new(), Protect::new());
    for op in ops {
        match op {
            Op::Code { page, offset, instruction } => {
                guest.write((CODE + page) * PAGE + offset, INSTRUCTIONS[instruction], &mut protect);
            }
            Op::Byte { page, offset, more, value } => guest.write((CODE + page) * PAGE + offset + more, &[value], &mut protect),
            Op::Map { table, index, page, rights } => {
                let entry = (CODE + page) * PAGE + rights;
                match TABLES.get(table) {
                    Some(table) => guest.write(table * PAGE + index * 8, &entry.to_le_bytes(), &mut protect),
                    None => guest.write(TABLE_32 * PAGE + index * 4, &(entry as u32).to_le_bytes(), &mut protect),
                }
            }
            Op::Table { which } => guest.write(DIRECTORY * PAGE, &(TABLES[which] * PAGE + 0x67).to_le_bytes(), &mut protect),
            Op::Root { which, rights } => guest.write(ROOTS[which] * PAGE, &(2 * PAGE + rights).to_le_bytes(), &mut protect),
            Op::Large { on } => {
                let entry = if on { 0xe7 } else { TABLES[0] * PAGE + 0x67 };
                guest.write(DIRECTORY * PAGE, &entry.to_le_bytes(), &mut protect);
            }
            Op::Find { mode: which, page, offset, user } => {
                let (registers, size) = mode(which);
                let context = Context::new(Paging::new(&registers, FEATURES), user, size);
                let base = if registers.cr0 == 0 { CODE * PAGE } else { 0 };
                let code = Code { memory: &guest.memory, context: &context, linear: base + page * PAGE + offset };
                // Twice: the first lookup may miss, the second may hit.
                for _ in 0..2 {
                    let expected = code.decode();
                    assert_eq!(verify.find(&code, &counters).copied(), expected, "verify");
                    assert_eq!(protect.find(&code, &mut guest.protected).copied(), expected, "protect");
                }
            }
        }
    }
}
