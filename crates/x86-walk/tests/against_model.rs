//! Random tables, registers and accesses, compared with a model that transcribes the manual.

mod model;

use proptest::prelude::*;
use stile_x86_walk::model::Memory;
use stile_x86_walk::{Access, Features, GuestMemory, Kind, PageFault, Paging, Registers, Restarts, trail, translate};

/// All tables lie in these few pages, so that random entries refer to tables.
const PAGES: u64 = 8;

fn entry() -> impl Strategy<Value = u64> {
    let page = prop_oneof![20 => 0..PAGES, 1 => 0..1_u64 << 20, 1 => any::<u64>().prop_map(|n| n >> 24)];
    // Mostly present and permissive, so that walks reach a page.
    let rights = prop_oneof![8 => Just(0x7_u64), 6 => Just(0x67), 1 => Just(0x87), 1 => 0..256_u64];
    let high = prop_oneof![16 => Just(0_u64), 1 => Just(1_u64 << 63), 1 => (0..12_u32).prop_map(|bit| 1_u64 << (51 + bit)), 1 => Just(1_u64 << 46)];
    (page, rights, high).prop_map(|(page, rights, high)| page << 12 | rights | high)
}

fn large_entry() -> impl Strategy<Value = u64> {
    let base =
        prop_oneof![4 => (0..4_u64).prop_map(|n| n << 30), 2 => (0..64_u64).prop_map(|n| n << 21), 1 => (0..64_u64).prop_map(|n| n << 13)];
    (base, 0..128_u64).prop_map(|(base, rights)| base | rights | 0x83)
}

#[derive(Clone, Debug)]
struct Case {
    registers: Registers,
    features: Features,
    entries: Vec<u64>,
    narrow: Vec<u32>,
    linear: u64,
    access: (u8, bool, bool),
}

/// Uses few indices of each table, all of which are filled.
fn linear() -> impl Strategy<Value = u64> {
    let index = || prop::sample::select(&[0_u64, 1, 2, 3][..]);
    (index(), index(), index(), index(), index(), 0..4096_u64)
        .prop_map(|(a, b, c, d, e, low)| a << 48 & 0x00ff_ffff_ffff_ffff | b << 39 | c << 30 | d << 21 | e << 12 | low)
}

fn case() -> impl Strategy<Value = Case> {
    let cr0 = (prop::bool::weighted(0.9), any::<bool>()).prop_map(|(pg, wp)| u64::from(pg) << 31 | u64::from(wp) << 16);
    let cr4 = (any::<bool>(), prop::bool::weighted(0.7), prop::bool::weighted(0.3), any::<bool>(), any::<bool>()).prop_map(
        |(pse, pae, la57, smep, smap)| {
            u64::from(pse) << 4 | u64::from(pae) << 5 | u64::from(la57) << 12 | u64::from(smep) << 20 | u64::from(smap) << 21
        },
    );
    let efer = (prop::bool::weighted(0.7), any::<bool>()).prop_map(|(lma, nxe)| u64::from(lma) << 10 | u64::from(nxe) << 11);
    let registers = (cr0, cr4, efer, 0..PAGES, prop::array::uniform4(entry())).prop_map(|(cr0, cr4, efer, root, pdpte)| {
        // Long mode is not active without PAE.
        let efer = if cr4 & 1 << 5 == 0 { efer & !(1 << 10) } else { efer };
        Registers { cr0, cr3: root << 12 | 0x18, cr4, efer, pdpte }
    });
    let features = (prop::sample::select(&[36_u8, 39, 46, 52][..]), any::<bool>(), any::<bool>())
        .prop_map(|(physical_bits, page_1g, pse36)| Features { physical_bits, page_1g, pse36 });
    let entries = prop::collection::vec(prop_oneof![5 => entry(), 1 => large_entry()], (PAGES * 4) as usize);
    let narrow = prop::collection::vec(prop_oneof![5 => entry(), 1 => large_entry()].prop_map(|e| e as u32), (PAGES * 4) as usize);
    (registers, features, entries, narrow, linear(), (0..3_u8, any::<bool>(), any::<bool>()))
        .prop_map(|(registers, features, entries, narrow, linear, access)| Case { registers, features, entries, narrow, linear, access })
}

fn memory(case: &Case) -> Memory {
    let memory = Memory::new((PAGES * 4096) as usize);
    let narrow = case.registers.cr4 & 1 << 5 == 0;
    for page in 0..PAGES {
        for i in 0..4 {
            let at = (page * 4 + i) as usize;
            if narrow {
                memory.put(page * 4096 + i * 4, &case.narrow[at].to_le_bytes());
            } else {
                memory.put(page * 4096 + i * 8, &case.entries[at].to_le_bytes());
            }
        }
    }
    memory
}

fn access(case: &Case) -> Access {
    let kind = [Kind::Read, Kind::Write, Kind::Fetch][case.access.0 as usize];
    Access { kind, user: case.access.1, smap_override: case.access.2 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn translate_agrees_with_model(mut case in case()) {
        let long = case.registers.efer & 1 << 10 != 0;
        if !long {
            // Move the indices to their positions in a 32-bit linear address.
            case.linear = case.linear & 0xffff | (case.linear >> 30 & 3) << 22 | (case.linear >> 39 & 3) << 30;
        }
        let paging = Paging::new(&case.registers, case.features);
        let (ours, theirs) = (memory(&case), memory(&case));
        let found = translate(&ours, &paging, case.linear, access(&case));
        let expected = model::translate(&theirs, &case.registers, case.features, case.linear, access(&case));
        match (found, expected) {
            (Ok(found), Ok(expected)) => prop_assert_eq!((found.address, found.left), expected),
            (Err(PageFault { linear, code }), Err(expected)) => prop_assert_eq!((linear, code.0), (case.linear, expected)),
            (found, expected) => prop_assert!(false, "{found:?}, not {expected:x?}"),
        }
        prop_assert_eq!(ours, theirs, "accessed and dirty flags");
    }

    /// A trail has the walk's result. Its entries change if and only if an entry of the walk changes.
    #[test]
    fn trail_agrees_with_translate(case in case(), page in 0..PAGES, slot in 0..4_u64, bit in 0..64_u32) {
        let memory = memory(&case);
        let paging = Paging::new(&case.registers, case.features);
        let found = trail(&memory, &paging, case.linear, case.access.1);
        let fetch = Access { kind: Kind::Fetch, user: case.access.1, smap_override: false };
        prop_assert_eq!(found.map(|trail| trail.address()), translate(&memory, &paging, case.linear, fetch).map(|found| found.address));
        // The walk may have set accessed flags.
        let Ok(trail) = trail(&memory, &paging, case.linear, case.access.1) else { return Ok(()) };
        let unchanged = |memory: &Memory| {
            let read = |address| if trail.narrow() { memory.read_u32(address).map(u64::from) } else { memory.read_u64(address) };
            trail.entries().iter().all(|&(address, value)| read(address) == Some(value))
        };
        prop_assert!(unchanged(&memory));
        let (bytes, bit) = if case.registers.cr4 & 1 << 5 == 0 { (4, bit % 32) } else { (8, bit) };
        let address = page * 4096 + slot * bytes;
        let on_trail = case.registers.cr0 >> 31 != 0 && model::entries(&memory, &case.registers, case.features, case.linear).contains(&address);
        let old = memory.read_u64(address).unwrap_or(0);
        memory.put(address, &(old ^ 1 << bit).to_le_bytes());
        prop_assert_eq!(unchanged(&memory), !on_trail, "{:#x}", address);
        prop_assert!(trail.tables().all(|table| table < PAGES * 4096 && table % 4096 == 0));
        prop_assert!(!on_trail || trail.tables().any(|table| table == page * 4096));
    }
}

/// Guards the generator: a share of the random cases must reach a page.
#[test]
fn generator_yields_translations_and_faults() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut reached = 0;
    for _ in 0..1000 {
        let case = case().new_tree(&mut runner).unwrap().current();
        let paging = Paging::new(&case.registers, case.features);
        reached += u32::from(translate(&memory(&case), &paging, case.linear, access(&case)).is_ok());
    }
    assert!((250..900).contains(&reached), "{reached} of 1000");
}

#[test]
fn non_canonical_addresses_are_detected() {
    let features = Features { physical_bits: 46, page_1g: true, pse36: true };
    let paging = |cr4: u64, efer: u64| Paging::new(&Registers { cr0: 1 << 31, cr4, efer, ..Registers::default() }, features);
    let (level4, level5, pae) = (paging(1 << 5, 1 << 10), paging(1 << 5 | 1 << 12, 1 << 10), paging(1 << 5, 0));
    for (linear, four, five) in [
        (0, false, false),
        (1 << 47, true, false),
        (1 << 56, true, true),
        (!0 << 47, false, false),
        (!0 << 56, true, false),
        (1 << 63, true, true),
    ] {
        assert_eq!((level4.non_canonical(linear), level5.non_canonical(linear)), (four, five), "{linear:#x}");
        assert!(!pae.non_canonical(linear));
    }
}

/// Memory whose compare-and-exchange always fails, as if entries changed at every access. Counts reads; the restarts of
/// all walks may be bounded.
struct Restless(std::cell::Cell<u64>, Option<Restarts>);

impl Restless {
    fn replace(&self) -> bool {
        self.1.as_ref().is_some_and(|restarts| restarts.check(false))
    }
}

impl GuestMemory for Restless {
    type Place = ();

    const ZEROS: () = ();

    fn place(&self, _: u64) -> Option<()> {
        None
    }

    fn look(&self, (): ()) -> u64 {
        0
    }

    fn read_u64(&self, _: u64) -> Option<u64> {
        self.0.set(self.0.get() + 1);
        Some(0x1007)
    }

    fn read_u32(&self, _: u64) -> Option<u32> {
        self.0.set(self.0.get() + 1);
        Some(0x1007)
    }

    fn replace_u64(&self, _: u64, _: u64, _: u64) -> bool {
        self.replace()
    }

    fn replace_u32(&self, _: u64, _: u32, _: u32) -> bool {
        self.replace()
    }
}

/// The accesses of ENTER with 31 levels, and of 8 elements of MOVS that each cross a page: a bound for all of their walks.
#[test]
fn restarts_of_all_walks_are_bounded() {
    const ENTER: u64 = 63;
    const MOVS: u64 = 32;
    let registers = Registers { cr0: 1 << 31, cr4: 1 << 5, efer: 1 << 10, ..Registers::default() };
    let paging = Paging::new(&registers, Features { physical_bits: 46, page_1g: true, pse36: true });
    for walks in [ENTER, MOVS] {
        let memory = Restless(std::cell::Cell::new(0), Some(Restarts::new()));
        for walk in 0..walks {
            let access = Access { kind: if walk % 2 == 0 { Kind::Read } else { Kind::Write }, user: false, smap_override: false };
            assert_eq!(translate(&memory, &paging, 0x1234, access).unwrap().address, 0x1234);
        }
        let reads = memory.0.get();
        assert!((4 * walks..=4 * (walks + u64::from(Restarts::MOST))).contains(&reads), "{walks} walks: {reads} reads");
    }
}

#[test]
fn walk_is_bounded_while_entries_keep_changing() {
    let registers = Registers { cr0: 1 << 31, cr4: 1 << 5 | 1 << 12, efer: 1 << 10, ..Registers::default() };
    let paging = Paging::new(&registers, Features { physical_bits: 46, page_1g: true, pse36: true });
    let memory = Restless(std::cell::Cell::new(0), None);
    let access = Access { kind: Kind::Write, user: false, smap_override: false };
    assert_eq!(translate(&memory, &paging, 0x1234, access).unwrap().address, 0x1234);
    assert!(memory.0.get() <= 50, "{} reads", memory.0.get());
}
