//! Descriptors and walks, bit by bit.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stile_paging::registers::PaRange;
use stile_paging::table::{
    Attributes, El2, El2Permissions, FaultReason, Format, Geometry, Level, MemoryType, PageTable, Stage2, Stage2Permissions, TableRead,
};

const NORMAL: MemoryType = MemoryType::Normal;
const STAGE2: Stage2 = Stage2 { forced_write_back: false };

fn encode<F: Format>(format: F, memory: MemoryType, permissions: F::Permissions) -> u64 {
    let attributes = Attributes { memory, permissions };
    let bits = format.encode(attributes);
    assert!(format.is_accessed(bits));
    assert_eq!(format.decode(bits), attributes);
    bits
}

#[test]
fn stage2_attributes() {
    let (all, data) = (Stage2Permissions::ALL, Stage2Permissions::READ_WRITE);
    let read_execute = Stage2Permissions::READ_EXECUTE;
    assert_eq!(encode(STAGE2, NORMAL, all), 0x7fc);
    assert_eq!(encode(STAGE2, NORMAL, read_execute), 0x77c);
    assert_eq!(encode(STAGE2, NORMAL, data), 1 << 54 | 0x7fc);
    assert_eq!(encode(STAGE2, MemoryType::Device, data), 1 << 54 | 0x6c4);
    assert_eq!(encode(STAGE2, MemoryType::NonCacheable, all), 0x6d4);
    let forced = Stage2 { forced_write_back: true };
    assert_eq!(encode(forced, NORMAL, all), 0x7d8);
    assert_eq!(encode(forced, MemoryType::Device, data), 1 << 54 | 0x6c4);
    assert_eq!(encode(forced, MemoryType::NonCacheable, all), 0x6d4);
}

/// Attributes that a guest hypervisor may write but this crate doesn't never decode to more than they permit.
#[test]
fn foreign_stage2_attributes_decode_no_more_permissive() {
    let executable = |xn: u64| STAGE2.decode(xn << 53 | 0x7fc).permissions.execute;
    assert_eq!([0, 1, 2, 3].map(executable), [true, false, false, false]);
    let memory = |mem_attr: u64| STAGE2.decode(mem_attr << 2).memory;
    assert_eq!([0, 1, 2, 3].map(memory), [MemoryType::Device; 4]);
    assert!((4..15).all(|mem_attr| memory(mem_attr) == MemoryType::NonCacheable));
    assert_eq!(memory(15), NORMAL);
}

#[test]
fn el2_attributes() {
    let (code, data) = (El2Permissions::CODE, El2Permissions::READ_WRITE);
    let (xn, pxn) = (1 << 54, 1 << 53);
    assert_eq!(encode(El2::Nvhe, NORMAL, code), 0x7c0);
    assert_eq!(encode(El2::Nvhe, NORMAL, data), xn | 0x740);
    assert_eq!(encode(El2::Nvhe, MemoryType::Device, data), xn | 0x644);
    assert_eq!(encode(El2::Vhe, NORMAL, code), xn | 0x780);
    assert_eq!(encode(El2::Vhe, NORMAL, data), xn | pxn | 0x700);
    assert_eq!(encode(El2::Vhe, MemoryType::Device, data), xn | pxn | 0x604);
    assert_eq!(encode(El2::Vhe, MemoryType::NonCacheable, data), xn | pxn | 0x608);
    let user = El2Permissions { write: false, execute: true, user: true };
    assert_eq!(encode(El2::Vhe, NORMAL, user), pxn | 0xfc0);
    assert!(!El2::Nvhe.supports(user));
}

/// Tables not made by this crate, in memory with holes.
struct Foreign(BTreeMap<(u64, usize), u64>);

impl TableRead for Foreign {
    type Error = &'static str;

    fn read(&self, table: u64, index: usize) -> Result<u64, &'static str> {
        self.0.get(&(table, index)).copied().ok_or("hole")
    }
}

#[test]
fn foreign_tables() {
    let page = 0x403;
    let memory = Foreign(BTreeMap::from([
        ((0x8000, 0), 0x9003),                // level 1: to a table
        ((0x8000, 1), 0),                     // invalid
        ((0x8000, 2), 0x10_4000_0401),        // a block beyond the physical address size
        ((0x8000, 3), 0x10_0000_0003),        // a table beyond the physical address size
        ((0x8000, 4), 0x4000_0001),           // a block without access flag
        ((0x8000, 5), 0xf003),                // a table in a hole
        ((0x8000, 1023), 0xffff_f401),        // in the second of two tables; low bits ignored
        ((0x9000, 0), 0xa003),                // level 2: to a table
        ((0xa000, 0), 0x5000 | page),         // level 3: a page
        ((0xa000, 1), 0x5000 | page & !0b10), // reserved
    ]));
    let geometry = Geometry::stage2_from(Level::L1, 40, PaRange::Bits44).unwrap();
    assert!(PageTable::new(STAGE2, geometry, 0x7000).is_err());
    let walk = |pa_range, address: u64| {
        let geometry = Geometry::stage2_from(Level::L1, 36, pa_range).unwrap();
        let table = PageTable::new(STAGE2, geometry, 0x8000).unwrap();
        table.translate(&memory, address).map(|found| (found.output, found.level))
    };
    let fault = |address: u64| {
        let fault = walk(PaRange::Bits36, address).unwrap_err();
        (fault.level, fault.reason)
    };
    assert_eq!(walk(PaRange::Bits36, 0xabc), Ok((0x5abc, Level::L3)));
    assert_eq!(fault(0x1000), (Level::L3, FaultReason::Translation));
    assert_eq!(fault(1 << 30), (Level::L1, FaultReason::Translation));
    assert_eq!(fault(2 << 30), (Level::L1, FaultReason::AddressSize));
    assert_eq!(walk(PaRange::Bits40, 2 << 30), Ok((0x10_4000_0000, Level::L1)));
    assert_eq!(fault(3 << 30), (Level::L1, FaultReason::AddressSize));
    assert_eq!(fault(4 << 30), (Level::L1, FaultReason::AccessFlag));
    assert_eq!(fault(5 << 30), (Level::L2, FaultReason::Read("hole")));
    assert_eq!(fault(1 << 36), (Level::L0, FaultReason::Translation));
    assert_eq!(fault(u64::MAX), (Level::L0, FaultReason::Translation));
    let table = PageTable::new(STAGE2, geometry, 0x8000).unwrap();
    let found = table.translate(&memory, (1 << 40) - 1).unwrap();
    assert_eq!((found.output, found.level), (0xffff_ffff, Level::L1));
    assert!(table.has_block(&memory, (1 << 40) - 1));
    assert!(!table.has_block(&memory, 0xabc) && !table.has_block(&memory, 0x1000), "a page, and nothing");
}

/// A table of self-references or random descriptors: the walk terminates, and stays within the physical
/// address size.
struct Noise(u64);

impl TableRead for Noise {
    type Error = ();

    fn read(&self, table: u64, index: usize) -> Result<u64, ()> {
        assert!(table.is_multiple_of(4096) && index < 8192);
        let mut x = self.0 ^ table.rotate_left(17) ^ index as u64;
        for _ in 0..3 {
            x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        // Biased towards table descriptors.
        Ok(if x >> 62 == 0 { x } else { x | 0b11 } & !0xf000_0000_0000)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise(seed: u64, address: u64, bits in 0..64u32, start in 0..3u8, ipa_bits in 20..50u8) {
        let start = [Level::L0, Level::L1, Level::L2][start as usize];
        if let Some(geometry) = Geometry::stage2_from(start, ipa_bits, PaRange::Bits44) {
            let table = PageTable::new(STAGE2, geometry, 1 << 40).unwrap();
            if let Ok(found) = table.translate(&Noise(seed), address >> bits) {
                prop_assert!(found.output < 1 << 44);
            }
        }
    }
}
