//! Blocks whose writes are tracked: divided page by page with few tables, and put together again, on the machine that checks each
//! invalidation.

use super::machine::{EPT, Machine, Shape, VMSA};
use super::{KIB_4, MIB_2, config};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use stile_paging::registers::PaRange;
use stile_paging::table::{Attributes, Ept, EptPermissions, Error, Format, Geometry, Level, Mapping, MemoryType, PageTable, Stage2};
use stile_paging::table::{Stage2Permissions, TableRead};

const BLOCKS: u64 = 4;
const BASE: u64 = 1 << 30;

#[derive(Debug, Clone)]
enum Step {
    /// All of a block becomes read-only.
    Protect(u64),
    /// Pages of a block that were written become read-only.
    Collect(u64),
    /// A page is written.
    Write(u64, u64),
    /// All of a block becomes writable.
    Permit(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..BLOCKS, prop_oneof![0..512u64, Just(0), Just(511)], 0..8).prop_map(|(block, page, which)| match which {
        0 => Step::Protect(block),
        1 => Step::Collect(block),
        2 => Step::Permit(block),
        _ => Step::Write(block, page),
    });
    prop::collection::vec(step, 0..60)
}

/// Runs the steps with tables for at most `most` blocks.
fn run<F: Format>(format: F, shape: Shape, geometry: Geometry, [all, tracked]: [F::Permissions; 2], most: usize, steps: Vec<Step>) {
    let machine = Machine::new(&geometry, shape);
    let (mut memory, mut tlb) = machine.parts();
    let mut table = PageTable::new(format, geometry, machine.root()).unwrap();
    let attributes = Attributes { memory: MemoryType::Normal, permissions: all };
    let ram = Mapping { address: BASE, output: BASE, size: BLOCKS * MIB_2, attributes };
    table.reserve(&mut memory, ram).unwrap();
    for block in 0..BLOCKS {
        let part = BASE + block * MIB_2;
        table.map(&mut memory, Mapping { address: part, output: part, size: MIB_2, ..ram }).unwrap();
    }
    let whole = machine.tables();
    // Writable pages of each block that is tracked.
    let mut model: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for step in steps {
        let before = machine.tables() - whole;
        machine.0.borrow_mut().budget = most - before;
        let mut protect = |address, size, permissions| table.protect(&mut memory, &mut tlb, address, size, permissions);
        match step {
            Step::Protect(block) => {
                protect(BASE + block * MIB_2, MIB_2, tracked).unwrap();
                model.insert(block, BTreeSet::new());
            }
            Step::Permit(block) => {
                protect(BASE + block * MIB_2, MIB_2, all).unwrap();
                model.remove(&block);
            }
            Step::Collect(block) => {
                for page in model.get_mut(&block).map(std::mem::take).unwrap_or_default() {
                    protect(BASE + block * MIB_2 + page * KIB_4, KIB_4, tracked).unwrap();
                }
            }
            Step::Write(block, page) => {
                let done = protect(BASE + block * MIB_2 + page * KIB_4, KIB_4, all);
                match model.get_mut(&block) {
                    Some(_) if done == Err(Error::OutOfMemory) => assert_eq!(before, most, "there are tables left"),
                    Some(pages) => {
                        assert_eq!(done, Ok(KIB_4));
                        pages.insert(page);
                    }
                    None => assert_eq!(done, Ok(KIB_4), "a block that is writable is not divided"),
                }
            }
        }
        machine.check();
        let mut divided = 0;
        for block in 0..BLOCKS {
            let find = |page: u64| table.translate(&memory, BASE + block * MIB_2 + page * KIB_4).unwrap();
            divided += usize::from(find(0).level == Level::L3);
            for page in (0..512).step_by(73).chain(model.get(&block).into_iter().flatten().copied()) {
                let found = find(page);
                let is_writable = model.get(&block).is_none_or(|pages| pages.contains(&page));
                assert_eq!(found.output, BASE + block * MIB_2 + page * KIB_4);
                assert_eq!(found.attributes.permissions, if is_writable { all } else { tracked }, "page {page} of block {block}");
            }
        }
        assert_eq!(machine.tables() - whole, divided, "a table for each divided block");
    }
    machine.0.borrow_mut().budget = 0;
    for block in 0..BLOCKS {
        table.protect(&mut memory, &mut tlb, BASE + block * MIB_2, MIB_2, all).unwrap();
    }
    machine.check();
    assert_eq!(machine.tables(), whole, "all blocks are put together again");
    assert!(memory.read(machine.root(), 0).is_ok());
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn stage2_blocks(steps in steps(), most in 0..=BLOCKS as usize) {
        let geometry = Geometry::stage2(39, PaRange::Bits40).unwrap();
        let permissions = [Stage2Permissions::ALL, Stage2Permissions::READ_EXECUTE];
        run(Stage2::default(), VMSA, geometry, permissions, most, steps);
    }

    #[test]
    fn ept_blocks(steps in steps(), most in 0..=BLOCKS as usize) {
        let geometry = Geometry::stage1(48, PaRange::Bits40).unwrap();
        let permissions = [EptPermissions::ALL, EptPermissions { write: false, execute: true }];
        run(Ept { largest: Level::L2 }, EPT, geometry, permissions, most, steps);
    }
}
