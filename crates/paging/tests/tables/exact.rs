//! Single operations and their exact effects.

use super::machine::Machine;
use super::{EPT, GIB, KIB_4, MIB_2, VMSA};
use proptest::prelude::*;
use stile_paging::registers::PaRange;
use stile_paging::table::{
    Attributes, El2, El2Permissions, EntryKind, Ept, EptPermissions, Error, Geometry, Invalidation, Level, Mapping, MemoryType, PageTable,
    Stage2, Stage2Permissions,
};

const ALL: Attributes<Stage2Permissions> = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::ALL };

fn stage2() -> (Machine, PageTable<Stage2>) {
    let geometry = Geometry::stage2(40, PaRange::Bits44).unwrap();
    let machine = Machine::new(&geometry, VMSA);
    let table = PageTable::new(Stage2::default(), geometry, machine.root()).unwrap();
    (machine, table)
}

fn mapping(address: u64, output: u64, size: u64) -> Mapping<Stage2Permissions> {
    Mapping { address, output, size, attributes: ALL }
}

fn leaf(address: u64, level: Level) -> Invalidation {
    Invalidation { address, level, kind: EntryKind::Leaf }
}

fn table_at(address: u64, level: Level) -> Invalidation {
    Invalidation { address, level, kind: EntryKind::Table }
}

/// The invalidations since the last call, and the number of completions.
fn maintenance(machine: &Machine) -> (Vec<Invalidation>, usize) {
    let mut state = machine.0.borrow_mut();
    (std::mem::take(&mut state.invalidations), std::mem::take(&mut state.completions))
}

proptest! {
    #![proptest_config(super::config())]

    /// A single mapping in an empty table uses the fewest possible leaves and tables.
    #[test]
    fn fresh_maps_are_minimal(
        address in super::address(8 * GIB),
        size in super::bytes(4 * GIB),
        unit in 0..3usize,
        off in 0..3u64,
    ) {
        let (unit, most) = [(GIB, 4 * GIB), (MIB_2, GIB), (KIB_4, 3 * MIB_2)][unit];
        let (output, size) = (address + off * unit, size.min(most));
        let (machine, mut table) = stage2();
        let (mut memory, _) = machine.parts();
        table.map(&mut memory, mapping(address, output, size)).unwrap();
        machine.check();
        // Greedy is optimal: block sizes divide each other.
        let (mut at, mut leaves) = (address, Vec::new());
        while at < address + size {
            let fits = |&bytes: &u64| {
                at % bytes == 0 && (at + (output - address)) % bytes == 0
                    && at + bytes <= address + size
            };
            let bytes = [GIB, MIB_2, KIB_4].into_iter().find(fits).unwrap();
            leaves.push((at, at + (output - address), bytes));
            at += bytes;
        }
        let found: Vec<_> = machine.leaves().iter().map(|&(a, o, s, _)| (a, o, s)).collect();
        prop_assert_eq!(&found, &leaves);
        let covering = |bytes: u64| {
            let small = leaves.iter().filter(|&&(_, _, leaf)| leaf < bytes);
            small.map(|&(a, _, _)| a / bytes).collect::<std::collections::BTreeSet<_>>().len()
        };
        prop_assert_eq!(machine.tables(), covering(GIB) + covering(MIB_2));
    }
}

/// Processors without 1 GiB pages get 2 MiB pages.
#[test]
fn largest_block_size_is_respected() {
    let geometry = Geometry::stage1(48, PaRange::Bits44).unwrap();
    let machine = Machine::new(&geometry, EPT);
    let mut table = PageTable::new(Ept { largest: Level::L2 }, geometry, machine.root()).unwrap();
    let (mut memory, _) = machine.parts();
    let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions::ALL };
    table.map(&mut memory, Mapping { address: GIB, output: 4 * GIB, size: 2 * GIB, attributes }).unwrap();
    machine.check();
    let leaves = machine.leaves();
    assert_eq!(leaves.len(), 1024);
    assert!(leaves.iter().all(|&(address, output, size, _)| size == MIB_2 && output == address + 3 * GIB));
    assert_eq!(table.translate(&memory, 3 * GIB - 1).unwrap().level, Level::L2);
}

#[test]
fn unmapping_a_page_splits_blocks() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    table.map(&mut memory, mapping(GIB, GIB, GIB)).unwrap();
    assert_eq!(machine.tables(), 0);
    let page = GIB + 5 * MIB_2 + 7 * KIB_4;
    assert_eq!(table.unmap(&mut memory, &mut tlb, page, KIB_4), Ok(KIB_4));
    machine.check();
    // Only one entry was broken; the tables that replace the block were never linked in another state.
    assert_eq!(maintenance(&machine), (vec![leaf(GIB, Level::L1)], 1));
    assert_eq!(machine.tables(), 2);
    assert_eq!(machine.leaves().len(), 511 + 511);
    assert!(table.translate(&memory, page).is_err());
    assert_eq!(table.translate(&memory, page + KIB_4).unwrap().output, page + KIB_4);
    // The next page is a page already.
    assert_eq!(table.unmap(&mut memory, &mut tlb, page + KIB_4, KIB_4), Ok(KIB_4));
    assert_eq!(maintenance(&machine), (vec![leaf(page + KIB_4, Level::L3)], 1));
}

#[test]
fn unmapping_the_last_page_frees_tables() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    table.map(&mut memory, mapping(GIB, GIB, KIB_4)).unwrap();
    assert_eq!(machine.tables(), 2);
    assert_eq!(table.unmap(&mut memory, &mut tlb, GIB, KIB_4), Ok(KIB_4));
    machine.check();
    assert_eq!(machine.tables(), 0);
    let expected = vec![leaf(GIB, Level::L3), table_at(GIB, Level::L2), table_at(GIB, Level::L1)];
    assert_eq!(maintenance(&machine), (expected, 1));
}

#[test]
fn unmapping_an_unmapped_range_does_nothing() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    assert_eq!(table.unmap(&mut memory, &mut tlb, 0, 1 << 40), Ok(0));
    table.clear(&mut memory, &mut tlb);
    assert_eq!(maintenance(&machine), (vec![], 0));
}

#[test]
fn protect_in_place_needs_no_break() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    let read = Stage2Permissions::READ;
    table.map(&mut memory, mapping(GIB, GIB, 2 * GIB)).unwrap();
    assert_eq!(table.protect(&mut memory, &mut tlb, GIB, 2 * GIB, read), Ok(2 * GIB));
    machine.check();
    let expected = vec![leaf(GIB, Level::L1), leaf(2 * GIB, Level::L1)];
    assert_eq!(maintenance(&machine), (expected, 1));
    // No change, not even a split.
    assert_eq!(table.protect(&mut memory, &mut tlb, GIB, KIB_4, read), Ok(KIB_4));
    assert_eq!(maintenance(&machine), (vec![], 0));
    assert_eq!(machine.tables(), 0);
}

#[test]
fn protect_merges_pages_into_blocks() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    table.map(&mut memory, mapping(GIB, 3 * GIB, GIB)).unwrap();
    let (read, all) = (Stage2Permissions::READ, Stage2Permissions::ALL);
    let page = GIB + MIB_2 + KIB_4;
    table.protect(&mut memory, &mut tlb, page, KIB_4, read).unwrap();
    machine.check();
    assert_eq!(machine.tables(), 2);
    assert_eq!(maintenance(&machine), (vec![leaf(GIB, Level::L1)], 1));
    // One level 2 block only: the range covers no more.
    table.protect(&mut memory, &mut tlb, GIB + MIB_2, MIB_2, all).unwrap();
    machine.check();
    assert_eq!(machine.tables(), 1);
    let (invalidations, rounds) = maintenance(&machine);
    assert_eq!(invalidations[0], table_at(GIB + MIB_2, Level::L2));
    assert_eq!((invalidations.len(), rounds), (1 + 512, 1));
    table.protect(&mut memory, &mut tlb, GIB, GIB, all).unwrap();
    machine.check();
    assert_eq!(machine.tables(), 0);
    assert_eq!(machine.leaves().len(), 1);
    assert_eq!(table.translate(&memory, page).unwrap().output, page + 2 * GIB);
}

#[test]
fn protect_merges_only_contiguous_equal_pages() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    // Two halves of a block's range with discontiguous memory.
    table.map(&mut memory, mapping(GIB, GIB, MIB_2 / 2)).unwrap();
    table.map(&mut memory, mapping(GIB + MIB_2 / 2, 9 * GIB, MIB_2 / 2)).unwrap();
    // Contiguous, but not aligned.
    table.map(&mut memory, mapping(GIB + MIB_2, GIB + KIB_4, MIB_2)).unwrap();
    // Contiguous, but of different memory types.
    let device = Attributes { memory: MemoryType::Device, ..ALL };
    let mut half = mapping(GIB + 2 * MIB_2, GIB, MIB_2 / 2);
    table.map(&mut memory, half).unwrap();
    half = mapping(half.address + MIB_2 / 2, half.output + MIB_2 / 2, half.size);
    table.map(&mut memory, Mapping { attributes: device, ..half }).unwrap();
    let read = Stage2Permissions::READ;
    assert_eq!(table.protect(&mut memory, &mut tlb, GIB, GIB, read), Ok(3 * MIB_2));
    machine.check();
    assert_eq!(machine.tables(), 4);
    assert_eq!(machine.leaves().len(), 3 * 512);
    assert_eq!(maintenance(&machine).0.len(), 3 * 512);
}

#[test]
fn change_of_ng_uses_break_before_make() {
    let geometry = Geometry::stage1(48, PaRange::Bits48).unwrap();
    let machine = Machine::new(&geometry, VMSA);
    let (mut memory, mut tlb) = machine.parts();
    let mut table = PageTable::new(El2::Vhe, geometry, machine.root()).unwrap();
    let attributes = Attributes { memory: MemoryType::Normal, permissions: El2Permissions::READ_WRITE };
    let mapping = Mapping { address: 0, output: 0, size: 3 * KIB_4, attributes };
    table.map(&mut memory, mapping).unwrap();
    // nG must not change in place; the machine would panic.
    let user = El2Permissions { write: false, execute: true, user: true };
    table.protect(&mut memory, &mut tlb, KIB_4, KIB_4, user).unwrap();
    machine.check();
    assert_eq!(maintenance(&machine), (vec![leaf(KIB_4, Level::L3)], 1));
    let found = table.translate(&memory, KIB_4).unwrap().attributes.permissions;
    assert_eq!(found, user);
}

#[test]
fn invalid_arguments_are_refused() {
    let (machine, mut table) = stage2();
    let (mut memory, mut tlb) = machine.parts();
    let mut map = |address, output, size| table.map(&mut memory, mapping(address, output, size));
    assert_eq!(map(0, 0, 0), Err(Error::InputRange));
    assert_eq!(map(1, 0, KIB_4), Err(Error::Unaligned));
    assert_eq!(map(0, 1, KIB_4), Err(Error::Unaligned));
    assert_eq!(map(0, 0, 1), Err(Error::Unaligned));
    assert_eq!(map(1 << 40, 0, KIB_4), Err(Error::InputRange));
    assert_eq!(map((1 << 40) - KIB_4, 0, 2 * KIB_4), Err(Error::InputRange));
    assert_eq!(map(u64::MAX - KIB_4 + 1, 0, 2 * KIB_4), Err(Error::InputRange));
    assert_eq!(map(0, 1 << 44, KIB_4), Err(Error::OutputRange));
    assert_eq!(map(0, (1 << 44) - KIB_4, 2 * KIB_4), Err(Error::OutputRange));
    assert_eq!(map(0, u64::MAX - KIB_4 + 1, KIB_4), Err(Error::OutputRange));
    assert_eq!(map((1 << 40) - KIB_4, (1 << 44) - KIB_4, KIB_4), Ok(()));
    assert_eq!(map(0, 0, 1 << 40), Err(Error::AlreadyMapped((1 << 40) - KIB_4)));
    assert_eq!(table.unmap(&mut memory, &mut tlb, 0, 1), Err(Error::Unaligned));

    let geometry = Geometry::stage1(48, PaRange::Bits48).unwrap();
    let mut table = PageTable::new(El2::Nvhe, geometry, machine.root()).unwrap();
    let user = El2Permissions { write: false, execute: false, user: true };
    let attributes = Attributes { memory: MemoryType::Normal, permissions: user };
    let mapping = Mapping { address: 0, output: 0, size: KIB_4, attributes };
    assert_eq!(table.map(&mut memory, mapping), Err(Error::Attributes));
    assert_eq!(table.protect(&mut memory, &mut tlb, 0, KIB_4, user), Err(Error::Attributes));

    let geometry = Geometry::stage2(42, PaRange::Bits48).unwrap();
    assert_eq!(geometry.root_size(), 8 * KIB_4);
    let new = |root| PageTable::new(Stage2::default(), geometry, root).map(|table| table.root());
    assert_eq!(new(KIB_4), Err(Error::Unaligned));
    assert_eq!(new(1 << 48), Err(Error::OutputRange));
    assert_eq!(new(8 * KIB_4), Ok(8 * KIB_4));
}
