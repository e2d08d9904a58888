//! Accessed and dirty flags of L1's extended page tables, compared with a plain model.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use proptest::prelude::*;
use stile_nested_vmx::ept::{ACCESSED_DIRTY, Fault, Leaf, Memory, Rights, walk};

const ROOT: u64 = 0x1000;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const LARGE: u64 = 1 << 7;

/// L1's memory, in which this many changes fail because another processor's came first.
#[derive(Clone, Default)]
struct Tables {
    words: RefCell<BTreeMap<u64, u64>>,
    lost: Cell<usize>,
}

impl Memory for Tables {
    fn read(&self, address: u64) -> Option<u64> {
        Some(self.words.borrow().get(&address).copied().unwrap_or(0))
    }

    fn replace(&self, address: u64, old: u64, new: u64) -> bool {
        if self.lost.get() > 0 {
            self.lost.set(self.lost.get() - 1);
            return false;
        }
        let mut words = self.words.borrow_mut();
        let word = words.entry(address).or_default();
        let is_same = *word == old;
        if is_same {
            *word = new;
        }
        is_same
    }
}

fn tables(words: &[(u64, u64)]) -> Tables {
    Tables { words: RefCell::new(words.iter().copied().collect()), lost: Cell::new(0) }
}

/// Three tables and a page that is not dirty.
const WORDS: [(u64, u64); 4] = [(0x1000, 0x2007), (0x2000, 0x3007), (0x3000, 0x4007), (0x4000, 0x9037)];

#[test]
fn flags_are_set_where_they_are_enabled() {
    let memory = tables(&WORDS);
    let page = |rights| Ok(Leaf { address: 0x9000, shift: 12, rights: Rights(rights) });
    assert_eq!(walk(&memory, ROOT, 0, Rights::WRITE, 40), page(7));
    assert_eq!(memory.words.borrow().values().copied().collect::<Vec<_>>(), [0x2007, 0x3007, 0x4007, 0x9037]);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::READ, 40), page(5), "not dirty");
    assert_eq!(memory.words.borrow().values().copied().collect::<Vec<_>>(), [0x2107, 0x3107, 0x4107, 0x9137]);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::WRITE, 40), page(7));
    assert_eq!(memory.words.borrow().values().copied().collect::<Vec<_>>(), [0x2107, 0x3107, 0x4107, 0x9337]);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::EXECUTE, 40), page(7), "dirty before");
}

#[test]
fn entries_that_change_are_walked_again() {
    let memory = tables(&WORDS);
    memory.lost.set(3);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::WRITE, 40).map(|leaf| leaf.address), Ok(0x9000));
    assert_eq!(memory.words.borrow()[&0x4000], 0x9337);
    let memory = tables(&WORDS);
    memory.lost.set(usize::MAX);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::WRITE, 40), Err(Fault::Violation(Rights::ALL)));
}

#[test]
fn a_table_that_points_to_itself() {
    let memory = tables(&[(0x1000, 0x1007)]);
    assert_eq!(walk(&memory, ROOT | ACCESSED_DIRTY, 0, Rights::WRITE, 40).map(|leaf| leaf.address), Ok(0x1000));
    assert_eq!(memory.words.borrow()[&0x1000], 0x1307);
}

/// Addresses of the entries that a walk reads.
fn path(memory: &Tables, address: u64) -> Vec<u64> {
    let mut path = Vec::new();
    let mut table = ROOT;
    for shift in [39, 30, 21, 12] {
        let at = table + (address >> shift & 0x1ff) * 8;
        path.push(at);
        let entry = memory.read(at).unwrap_or(0);
        if entry & LARGE != 0 {
            break;
        }
        table = entry & 0xf_ffff_f000;
    }
    path
}

/// Entries of few tables, which lead to each other, and flags in all states.
fn entry() -> impl Strategy<Value = u64> {
    let rights = prop_oneof![8 => Just(7_u64), 1 => 0..8_u64];
    let large = prop_oneof![4 => Just(0_u64), 1 => Just(LARGE)];
    (1..6_u64, rights, large, 0..4_u64).prop_map(|(table, rights, large, flags)| {
        let address = if large != 0 { table << 30 } else { table << 12 };
        address | rights | large | flags << 8
    })
}

proptest! {
    #[test]
    fn as_the_manual_says(
        entries in prop::collection::vec(entry(), 20),
        indices in prop::array::uniform4(0..4_u64),
        needed in 1..8_u8,
    ) {
        let words: Vec<_> = entries.iter().enumerate().map(|(n, &entry)| (ROOT + n as u64 / 4 * 0x1000 + n as u64 % 4 * 8, entry)).collect();
        let (memory, before) = (tables(&words), tables(&words));
        let [a, b, c, d] = indices;
        let address = a << 39 | b << 30 | c << 21 | d << 12;
        let needed = Rights(needed);
        let plain = walk(&before, ROOT, address, needed, 40);
        prop_assert_eq!(&*before.words.borrow(), &words.iter().copied().collect());
        let found = walk(&memory, ROOT | ACCESSED_DIRTY, address, needed, 40);
        let mut expected: BTreeMap<_, _> = words.iter().copied().collect();
        let expects = plain.map(|leaf| {
            let path = path(&before, address);
            for at in &path {
                *expected.entry(*at).or_default() |= ACCESSED;
            }
            let last = expected.entry(path[path.len() - 1]).or_default();
            if needed.contains(Rights::WRITE) {
                *last |= DIRTY;
            }
            let writable = if *last & DIRTY != 0 { 2 } else { 0 };
            Leaf { rights: Rights(leaf.rights.0 & (5 | writable)), ..leaf }
        });
        prop_assert_eq!(found, expects);
        prop_assert_eq!(&*memory.words.borrow(), &expected);
    }
}
