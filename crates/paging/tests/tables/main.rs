//! Tables against a reference model, on a machine that checks each step.

mod every;
mod exact;
mod machine;
mod reference;
mod tracked;

use machine::{EPT, IA32E, Machine, Shape, VMSA};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use reference::Reference;
use stile_paging::registers::PaRange;
use stile_paging::table::{
    Attributes, El2, El2Permissions, Ept, EptPermissions, Error, Format, Geometry, Ia32e, Ia32ePermissions, Level, Mapping, MemoryType,
    PageTable, Stage2, Stage2Permissions,
};

const KIB_4: u64 = 1 << 12;
const MIB_2: u64 = 1 << 21;
const GIB: u64 = 1 << 30;

#[derive(Debug, Clone)]
enum Operation<P> {
    Map(Mapping<P>),
    Unmap { address: u64, size: u64 },
    Protect { address: u64, size: u64, permissions: P },
    Clear,
}

/// Sizes, and distances from an anchor, at the edge cases. `most` bounds them.
fn bytes(most: u64) -> impl Strategy<Value = u64> {
    let parts = (0..4u64, 0..6u64, 0..4u64, 0..3u64);
    parts.prop_map(move |(gib, mib_2, kib_4, which)| {
        let bytes = match which {
            0 => gib * GIB + mib_2 * MIB_2 + kib_4 * KIB_4,
            1 => mib_2 * MIB_2,
            _ => mib_2 * MIB_2 + kib_4 * KIB_4,
        };
        bytes.min(most).max(KIB_4)
    })
}

/// An address near one anchor, so that operations often overlap.
fn address(anchor: u64) -> impl Strategy<Value = u64> {
    (bytes(3 * GIB), any::<bool>()).prop_map(move |(distance, above)| if above { anchor + distance - KIB_4 } else { anchor - distance })
}

fn memory_type() -> impl Strategy<Value = MemoryType> {
    prop_oneof![
        4 => Just(MemoryType::Normal),
        1 => Just(MemoryType::NonCacheable),
        1 => Just(MemoryType::Device),
    ]
}

fn operation<P: std::fmt::Debug + Copy + 'static>(
    anchor: u64,
    permissions: impl Strategy<Value = P> + Clone + 'static,
) -> impl Strategy<Value = Operation<P>> {
    let unmap = (address(anchor), bytes(8 * GIB)).prop_map(|(address, size)| Operation::Unmap { address, size });
    let protect = (address(anchor), bytes(8 * GIB), permissions.clone()).prop_map(|(address, size, permissions)| Operation::Protect {
        address,
        size,
        permissions,
    });
    // The output's misalignment limits block sizes. Few large ranges of small pages, for the sake of time.
    let map = (address(anchor), bytes(3 * GIB), 0..3, 1..5u64, memory_type(), permissions);
    let map = map.prop_map(|(address, size, unit, off, memory, permissions)| {
        let (unit, most) = [(GIB, 3 * GIB), (MIB_2, GIB), (KIB_4, 3 * MIB_2)][unit as usize];
        let attributes = Attributes { memory, permissions };
        let (output, size) = (address + off * unit - 2 * unit, size.min(most));
        Operation::Map(Mapping { address, output, size, attributes })
    });
    prop_oneof![10 => map, 6 => unmap, 6 => protect, 1 => Just(Operation::Clear)]
}

/// Runs operations on a table and on the reference; `budgets` limit the frames that each may allocate.
fn run<F: Format>(format: F, shape: Shape, geometry: Geometry, operations: Vec<(Operation<F::Permissions>, usize)>, probes: &[u64]) {
    let machine = Machine::new(&geometry, shape);
    let (mut memory, mut tlb) = machine.parts();
    let mut table = PageTable::new(format, geometry, machine.root()).unwrap();
    let mut reference = Reference::new();
    for (operation, budget) in operations {
        machine.0.borrow_mut().budget = budget;
        let before = machine.0.borrow().live.clone();
        let tables = machine.tables();
        let result = match operation {
            Operation::Map(mapping) => table.map(&mut memory, mapping).map(|()| mapping.size),
            Operation::Unmap { address, size } => table.unmap(&mut memory, &mut tlb, address, size),
            Operation::Protect { address, size, permissions } => table.protect(&mut memory, &mut tlb, address, size, permissions),
            Operation::Clear => {
                table.clear(&mut memory, &mut tlb);
                Ok(0)
            }
        };
        machine.check();
        let first_mapped = match operation {
            Operation::Map(Mapping { address, size, .. }) => reference.first_mapped(address, address + size),
            _ => None,
        };
        match (result, first_mapped) {
            (Err(Error::OutOfMemory), None) => {
                assert!(budget < usize::MAX);
                assert_eq!(before, machine.0.borrow().live, "a failed operation changed the table");
                assert_eq!(tables, machine.tables());
            }
            (Err(error), _) => {
                assert_eq!(first_mapped.map(Error::AlreadyMapped), Some(error));
                assert_eq!(before, machine.0.borrow().live);
            }
            (Ok(mapped), _) => {
                assert_eq!(first_mapped, None);
                assert_eq!(mapped, apply(&mut reference, &operation));
            }
        }
        compare(&table, &machine, &reference, &memory, probes);
    }
    table.clear(&mut memory, &mut tlb);
    machine.check();
    assert_eq!(machine.tables(), 0);
}

fn apply<P: Copy + PartialEq>(reference: &mut Reference<Attributes<P>>, operation: &Operation<P>) -> u64 {
    match *operation {
        Operation::Map(Mapping { address, output, size, attributes }) => {
            reference.map(address, output, size, attributes);
            size
        }
        Operation::Unmap { address, size } => reference.unmap(address, address + size),
        Operation::Protect { address, size, permissions } => {
            reference.protect(address, address + size, |old| Attributes { permissions, ..old })
        }
        Operation::Clear => {
            *reference = Reference::new();
            0
        }
    }
}

/// Compares table and reference: as a whole, and by translating `probes`.
fn compare<F: Format>(
    table: &PageTable<F>,
    machine: &Machine,
    reference: &Reference<Attributes<F::Permissions>>,
    memory: &machine::Memory,
    probes: &[u64],
) {
    let mut found = Reference::new();
    for (address, output, size, descriptor) in machine.leaves() {
        found.map(address, output, size, table.format().decode(descriptor));
    }
    assert_eq!(found.joined(), reference.joined());
    for &probe in probes {
        let translation = table.translate(memory, probe).ok();
        let translation = translation.map(|found| (found.output, found.attributes));
        assert_eq!(translation, reference.translate(probe), "at {probe:#x}");
    }
}

fn stage2_permissions() -> impl Strategy<Value = Stage2Permissions> + Clone {
    prop_oneof![
        Just(Stage2Permissions::ALL),
        Just(Stage2Permissions::READ),
        any::<(bool, bool, bool)>().prop_map(|(read, write, execute)| Stage2Permissions { read, write, execute }),
    ]
}

fn el2_permissions(user: bool) -> impl Strategy<Value = El2Permissions> + Clone {
    any::<(bool, bool, bool)>().prop_map(move |(write, execute, is_user)| El2Permissions { write, execute, user: user && is_user })
}

fn ept_permissions() -> impl Strategy<Value = EptPermissions> + Clone {
    any::<(bool, bool)>().prop_map(|(write, execute)| EptPermissions { write, execute })
}

fn ia32e_permissions() -> impl Strategy<Value = Ia32ePermissions> + Clone {
    prop_oneof![Just(Ia32ePermissions::READ), Just(Ia32ePermissions::READ_WRITE), Just(Ia32ePermissions::CODE)]
}

/// Some operations get a small frame budget.
fn operations<P: std::fmt::Debug + Copy + 'static>(
    anchor: u64,
    permissions: impl Strategy<Value = P> + Clone + 'static,
) -> impl Strategy<Value = Vec<(Operation<P>, usize)>> {
    let budget = prop_oneof![3 => Just(usize::MAX), 1 => 0..5usize];
    proptest::collection::vec((operation(anchor, permissions), budget), 1..20)
}

fn probes(anchor: u64) -> impl Strategy<Value = Vec<u64>> {
    let probe = (address(anchor), 0..KIB_4).prop_map(|(page, offset)| page + offset);
    proptest::collection::vec(probe, 16)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 16, rng_seed: RngSeed::Fixed(0x5711e), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn stage2_of_39_bits(
        operations in operations(4 * GIB, stage2_permissions()),
        probes in probes(4 * GIB),
        forced_write_back: bool,
    ) {
        let geometry = Geometry::stage2(39, PaRange::Bits40).unwrap();
        run(Stage2 { forced_write_back }, VMSA, geometry, operations, &probes);
    }

    /// At the boundary between two concatenated tables.
    #[test]
    fn stage2_of_42_bits(
        operations in operations(512 * GIB, stage2_permissions()),
        probes in probes(512 * GIB),
    ) {
        let geometry = Geometry::stage2(42, PaRange::Bits42).unwrap();
        run(Stage2::default(), VMSA, geometry, operations, &probes);
    }

    /// At the boundary between two level 0 entries.
    #[test]
    fn stage2_of_48_bits(
        operations in operations(1024 * GIB, stage2_permissions()),
        probes in probes(1024 * GIB),
    ) {
        let geometry = Geometry::stage2(48, PaRange::Bits48).unwrap();
        run(Stage2::default(), VMSA, geometry, operations, &probes);
    }

    #[test]
    fn el2_with_two_privilege_levels(
        operations in operations(512 * GIB, el2_permissions(true)),
        probes in probes(512 * GIB),
    ) {
        let geometry = Geometry::stage1(48, PaRange::Bits44).unwrap();
        run(El2::Vhe, VMSA, geometry, operations, &probes);
    }

    #[test]
    fn el2_with_one_privilege_level(
        operations in operations(512 * GIB, el2_permissions(false)),
        probes in probes(512 * GIB),
    ) {
        let geometry = Geometry::stage1(48, PaRange::Bits44).unwrap();
        run(El2::Nvhe, VMSA, geometry, operations, &probes);
    }

    #[test]
    fn extended_page_tables(
        operations in operations(512 * GIB, ept_permissions()),
        probes in probes(512 * GIB),
    ) {
        let geometry = Geometry::stage1(48, PaRange::Bits40).unwrap();
        run(Ept { largest: Level::L1 }, EPT, geometry, operations, &probes);
    }

    #[test]
    fn intels_first_stage(
        operations in operations(512 * GIB, ia32e_permissions()),
        probes in probes(512 * GIB),
    ) {
        let geometry = Geometry::stage1(48, PaRange::Bits48).unwrap();
        run(Ia32e { largest: Level::L1 }, IA32E, geometry, operations, &probes);
    }

    /// A reserved range is mapped, vacated and mapped again in parts without allocating tables.
    #[test]
    fn reserved_ranges(
        first in 0..600u64,
        blocks in prop_oneof![1..6u64, 500..700u64],
        steps in proptest::collection::vec((0..700u64, 1..5u64, any::<bool>()), 1..30),
    ) {
        let geometry = Geometry::stage2(39, PaRange::Bits40).unwrap();
        let machine = Machine::new(&geometry, VMSA);
        let (mut memory, mut tlb) = machine.parts();
        let mut table = PageTable::new(Stage2::default(), geometry, machine.root()).unwrap();
        let mut reference = Reference::new();
        let attributes = Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::ALL };
        let address = GIB + first * MIB_2;
        // Few blocks are mapped by pages.
        let output = address + if blocks < 6 { KIB_4 } else { MIB_2 };
        let whole = Mapping { address, output, size: blocks * MIB_2, attributes };
        table.reserve(&mut memory, whole).unwrap();
        machine.check_reserved();
        let tables = machine.tables();
        machine.0.borrow_mut().budget = 0;
        // Parts of blocks, where pages map them; ranges of which a part is mapped, when they are vacated.
        let unit = if blocks < 6 { MIB_2 / 4 } else { MIB_2 };
        for (start, count, maps) in steps {
            let offset = start * unit % whole.size;
            let size = (count * unit).min(whole.size - offset);
            let mapping = Mapping { address: address + offset, output: output + offset, size, attributes };
            let end = mapping.address + size;
            if !maps {
                let vacated = table.vacate(&mut memory, &mut tlb, mapping.address, size).unwrap();
                prop_assert_eq!(vacated, reference.unmap(mapping.address, end));
            } else if reference.first_mapped(mapping.address, end).is_none() {
                table.map(&mut memory, mapping).unwrap();
                reference.map(mapping.address, mapping.output, size, attributes);
            }
            machine.check_reserved();
            compare(&table, &machine, &reference, &memory, &[mapping.address, end - KIB_4]);
        }
        prop_assert_eq!(machine.tables(), tables);
    }

    /// With arbitrary numbers, an error changes nothing, and nothing panics.
    #[test]
    fn hostile_ranges(address: u64, output: u64, size: u64, aligned: bool, bits in 12..64u32) {
        let round = |n: u64| if aligned { n & !(KIB_4 - 1) } else { n };
        let (address, output) = (round(address), round(output));
        // Too large to succeed.
        let size = round(size >> bits) | GIB << 9;
        let geometry = Geometry::stage2(39, PaRange::Bits40).unwrap();
        let machine = Machine::new(&geometry, VMSA);
        let (mut memory, mut tlb) = machine.parts();
        let mut table = PageTable::new(Stage2::default(), geometry, machine.root()).unwrap();
        let attributes =
            Attributes { memory: MemoryType::Normal, permissions: Stage2Permissions::ALL };
        let mapping = Mapping { address, output, size, attributes };
        let expected = [Error::Unaligned, Error::InputRange, Error::OutputRange];
        prop_assume!(address != 0 || size != 1 << 39);
        prop_assert!(expected.contains(&table.map(&mut memory, mapping).unwrap_err()));
        let expected = [Error::Unaligned, Error::InputRange];
        let error = table.unmap(&mut memory, &mut tlb, address, size).unwrap_err();
        prop_assert!(expected.contains(&error));
        let permissions = Stage2Permissions::READ;
        let error =
            table.protect(&mut memory, &mut tlb, address, size, permissions).unwrap_err();
        prop_assert!(expected.contains(&error));
        prop_assert!(table.translate(&memory, address).is_err());
        prop_assert_eq!(machine.tables(), 0);
        prop_assert!(machine.leaves().is_empty());
        machine.check();
    }
}
