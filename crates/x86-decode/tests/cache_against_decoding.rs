//! Both cache schemes compared with uncached decoding, while code, mappings, roots, modes and privileges change.

mod changes;
mod guest;

use changes::{FEATURES, INSTRUCTIONS, MODES, Op, mode};
use guest::{CODE, Guest, PAGE, PAGES, TABLES};
use proptest::prelude::*;
use stile_x86_decode::cache::{Counters, Protect, SETS, Verify, WAYS};
use stile_x86_decode::{Code, CodeSize, Context, Fault, Refusal};
use stile_x86_walk::model::Memory;
use stile_x86_walk::{Paging, Registers};

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0_u64), 2 => Just(0x100), 1 => Just(0xff7), 1 => Just(0xff8), 1 => Just(0xffb), 2 => Just(0xffe), 2 => Just(0xfff)]
}

fn op() -> impl Strategy<Value = Op> {
    let page = || 0..4_u64;
    let rights = prop_oneof![6 => Just(0x67_u64), 1 => Just(0x63), 1 => Just(0x07), 1 => Just(0x66), 1 => Just(1 << 63 | 0x67)];
    prop_oneof![
        3 => (page(), offset(), 0..INSTRUCTIONS.len()).prop_map(|(page, offset, instruction)| Op::Code { page, offset, instruction }),
        1 => (page(), offset(), 0..12_u64, any::<u8>()).prop_map(|(page, offset, more, value)| Op::Byte { page, offset, more, value }),
        1 => (0..3_usize, page(), prop_oneof![4 => page(), 1 => 0..64_u64], rights)
            .prop_map(|(table, index, page, rights)| Op::Map { table, index, page, rights }),
        1 => (0..2_usize).prop_map(|which| Op::Table { which }),
        1 => (0..2_usize, prop_oneof![4 => Just(0x67_u64), 1 => Just(0x63), 1 => Just(0x66), 1 => Just(1 << 63 | 0x67)])
            .prop_map(|(which, rights)| Op::Root { which, rights }),
        1 => prop::bool::weighted(0.2).prop_map(|on| Op::Large { on }),
        14 => (0..MODES, page(), offset(), prop::bool::weighted(0.3)).prop_map(|(mode, page, offset, user)| Op::Find { mode, page, offset, user }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn caches_agree_with_decoding(ops in prop::collection::vec(op(), 1..120)) {
        changes::compare(ops);
    }
}

struct Place {
    registers: Registers,
    linear: u64,
}

impl Place {
    fn long(linear: u64) -> Self {
        Self { registers: mode(0).0, linear }
    }
}

/// Looks up in both caches, which must agree; returns hits, misses, mismatches and drops so far.
fn find(guest: &mut Guest, verify: &mut (Verify<Memory>, Counters), protect: &mut Protect, place: &Place) -> Result<u8, Refusal> {
    let context = Context::new(Paging::new(&place.registers, FEATURES), false, CodeSize::Bits64);
    let code = Code { memory: &guest.memory, context: &context, linear: place.linear };
    let found = verify.0.find(&code, &verify.1).copied();
    assert_eq!(protect.find(&code, &mut guest.protected).copied(), found);
    found.map(|decoded| decoded.len())
}

#[test]
fn counters() {
    let mut guest = Guest::new();
    let (mut verify, mut protect) = ((Verify::new(), Counters::new()), Protect::new());
    let place = Place::long(0x100);
    guest.write(CODE * PAGE + 0x100, INSTRUCTIONS[2], &mut protect);
    for _ in 0..5 {
        assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(6));
    }
    guest.write(CODE * PAGE + 0x100, INSTRUCTIONS[0], &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(2));
    let (v, p) = (verify.1.counts(), protect.counts());
    assert_eq!((v.hits, v.misses, v.mismatches, v.dropped, v.evictions), (4, 2, 1, 0, 0));
    assert_eq!((p.hits, p.misses, p.mismatches, p.dropped, p.evictions), (4, 2, 0, 1, 0));
    // A write elsewhere in the page: no effect with verify, a drop with protect.
    guest.write(CODE * PAGE + 0x800, &[1], &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(2));
    assert_eq!((verify.1.counts().hits, protect.counts().hits), (5, 4));
    assert_eq!((verify.1.counts().dropped, protect.counts().dropped), (0, 2));
}

/// Processes run the same kernel by roots of their own: it is decoded once.
#[test]
fn entries_move_between_roots() {
    let mut guest = Guest::new();
    let (mut verify, mut protect) = ((Verify::new(), Counters::new()), Protect::new());
    let place = |which: usize, linear| Place { registers: mode(which).0, linear };
    // The second one crosses pages: it is compared by a walk.
    for (linear, length) in [(0x100, 6), (0xffe, 7)] {
        guest.write(CODE * PAGE + linear, INSTRUCTIONS[if length == 6 { 2 } else { 3 }], &mut protect);
        let before = verify.1.counts();
        for which in [0, 1, 0, 1] {
            assert_eq!(find(&mut guest, &mut verify, &mut protect, &place(which, linear)), Ok(length));
        }
        let now = verify.1.counts();
        assert_eq!((now.hits - before.hits, now.misses - before.misses, now.mismatches), (3, 1, 0));
    }
    // The other root leads nowhere: a fault there, and the entry stays.
    guest.write(mode(0).0.cr3, &[0; 8], &mut protect);
    assert!(matches!(find(&mut guest, &mut verify, &mut protect, &place(0, 0x100)), Err(Refusal::Fault(Fault::Page(_)))));
    let hits = verify.1.counts().hits;
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place(1, 0x100)), Ok(6));
    assert_eq!(verify.1.counts().hits, hits + 1);
    // Other code by the other root is decoded.
    guest.write(CODE * PAGE + 0x100, INSTRUCTIONS[0], &mut protect);
    guest.write(mode(0).0.cr3, &(2 * PAGE + 0x67).to_le_bytes(), &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place(0, 0x100)), Ok(2));
    assert_eq!(verify.1.counts().hits, hits + 1);
}

#[test]
fn full_sets_evict() {
    let mut guest = Guest::new();
    let (mut verify, mut protect) = ((Verify::new(), Counters::new()), Protect::new());
    let instructions = 2 * SETS * WAYS;
    for i in 0..instructions as u64 {
        guest.write(CODE * PAGE + i * 3, INSTRUCTIONS[0], &mut protect);
    }
    for i in 0..instructions as u64 {
        assert_eq!(find(&mut guest, &mut verify, &mut protect, &Place::long(i * 3)), Ok(2));
    }
    for counts in [verify.1.counts(), protect.counts()] {
        assert_eq!((counts.hits, counts.misses, counts.evictions), (0, instructions as u64, (instructions - SETS * WAYS) as u64));
    }
}

#[test]
fn page_crossing_instructions_depend_on_both_pages() {
    let mut guest = Guest::new();
    let (mut verify, mut protect) = ((Verify::new(), Counters::new()), Protect::new());
    let place = Place::long(0xffe);
    guest.write(CODE * PAGE + 0xffe, INSTRUCTIONS[3], &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(7));
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(7));
    assert_eq!((verify.1.counts().hits, protect.counts().hits), (1, 1));
    // Another second page makes the instruction shorter: mod 0, no SIB.
    guest.write((CODE + 3) * PAGE, &[0x90; 16], &mut protect);
    guest.write((CODE) * PAGE + 0xffe, &[0x89, 0x05], &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(6));
    guest.write(TABLES[0] * PAGE + 8, &((CODE + 3) * PAGE + 0x67).to_le_bytes(), &mut protect);
    let before = verify.1.counts().hits;
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(6));
    assert_eq!(verify.1.counts().hits, before, "another page, other bytes");
    // Unmap the second page: a fault, except for an instruction that ends with the first page.
    guest.write(TABLES[0] * PAGE + 8, &[0; 8], &mut protect);
    let fault = find(&mut guest, &mut verify, &mut protect, &place);
    assert!(matches!(fault, Err(Refusal::Fault(Fault::Page(fault))) if fault.linear == 0x1000), "{fault:?}");
    guest.write(CODE * PAGE + 0xffe, INSTRUCTIONS[0], &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Ok(2));
    // Map it to an address without memory.
    guest.write(CODE * PAGE + 0xffe, INSTRUCTIONS[3], &mut protect);
    guest.write(TABLES[0] * PAGE + 8, &(PAGES * PAGE + 0x67).to_le_bytes(), &mut protect);
    assert_eq!(find(&mut guest, &mut verify, &mut protect, &place), Err(Refusal::NoMemory(PAGES * PAGE)));
}

/// An instruction whose pages cannot be protected is not cached.
#[test]
fn unprotectable_pages_are_not_cached() {
    struct Never;
    impl stile_x86_decode::cache::Protector for Never {
        fn protect(&mut self, _: u64) -> bool {
            false
        }
    }
    let mut guest = Guest::new();
    let mut protect = Protect::new();
    guest.write(CODE * PAGE, INSTRUCTIONS[0], &mut protect);
    let context = Context::new(Paging::new(&mode(0).0, FEATURES), false, CodeSize::Bits64);
    let code = Code { memory: &guest.memory, context: &context, linear: 0 };
    for _ in 0..3 {
        assert_eq!(protect.find(&code, &mut Never).map(|decoded| decoded.len()), Ok(2));
    }
    assert_eq!((protect.counts().hits, protect.counts().misses), (0, 3));
}
