//! A model of memory and TLBs: memory tracks the owner of each frame, and TLBs retain every entry that a
//! table walk could have observed until it is invalidated. Panics on any violation of "Using
//! break-before-make when updating translation table entries".

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::rc::Rc;

use stile_paging::PAGE_SIZE;
use stile_paging::table::{ENTRIES, EntryKind, Geometry, Invalidation, Level, Maintenance, TableMemory, TableRead};

/// Identifies an entry by its input range and kind.
pub type Key = (u64, u8, bool);

fn key(address: u64, level: Level, kind: EntryKind) -> Key {
    (address, level as u8, kind == EntryKind::Table)
}

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const ROOT: u64 = 0x10_0000;
pub const LEVELS: [Level; 4] = [Level::L0, Level::L1, Level::L2, Level::L3];

/// The machine's own decoding of descriptors, independent of the crate's.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The kind of a valid descriptor.
    pub kind_of: fn(Level, u64) -> Option<EntryKind>,
    /// Bits that may change between two valid descriptors in place.
    pub permission_bits: u64,
}

/// Arm's: permissions are `AP` or `S2AP`, and the `XN` bits.
pub const VMSA: Shape = Shape { kind_of: vmsa_kind_of, permission_bits: 0b11 << 6 | 0b11 << 53 };
/// Extended page tables.
pub const EPT: Shape = Shape { kind_of: |level, descriptor| intel_kind_of(level, descriptor, 0b111), permission_bits: 0b111 };
/// Intel's first stage.
pub const IA32E: Shape = Shape { kind_of: |level, descriptor| intel_kind_of(level, descriptor, 0b1), permission_bits: 1 << 1 | 1 << 63 };

fn intel_kind_of(level: Level, descriptor: u64, present: u64) -> Option<EntryKind> {
    match (level, descriptor & present != 0, descriptor >> 7 & 1 != 0) {
        (_, false, _) => None,
        (Level::L3, true, false) | (Level::L1 | Level::L2, true, true) => Some(EntryKind::Leaf),
        (Level::L0 | Level::L1 | Level::L2, true, false) => Some(EntryKind::Table),
        _ => panic!("reserved descriptor {descriptor:#x} at {level:?}"),
    }
}

fn vmsa_kind_of(level: Level, descriptor: u64) -> Option<EntryKind> {
    match (level, descriptor & 0b11) {
        (_, 0b00 | 0b10) => None,
        (Level::L3, 0b11) | (Level::L1 | Level::L2, 0b01) => Some(EntryKind::Leaf),
        (Level::L0 | Level::L1 | Level::L2, 0b11) => Some(EntryKind::Table),
        _ => panic!("reserved descriptor {descriptor:#x} at {level:?}"),
    }
}

#[derive(Clone)]
pub struct State {
    /// Contents of table frames.
    frames: HashMap<u64, [u64; ENTRIES]>,
    root_size: u64,
    shape: Shape,
    next_frame: u64,
    freed: Vec<u64>,
    allocated: BTreeSet<u64>,
    /// Number of frames that may still be allocated.
    pub budget: usize,
    /// Tables reachable by a walk: level, and the address of the first entry.
    reachable: BTreeMap<u64, (Level, u64)>,
    /// Valid entries reachable by a walk.
    pub live: BTreeMap<Key, u64>,
    /// Entries that TLBs may hold although no walk reaches them.
    stale: BTreeMap<Key, Vec<u64>>,
    /// Tables to which stale entries point.
    stale_tables: BTreeSet<u64>,
    /// Invalidations since the last completion.
    reported: BTreeSet<Key>,
    /// All invalidations, and the number of completions.
    pub invalidations: Vec<Invalidation>,
    pub completions: usize,
}

#[derive(Clone)]
pub struct Machine(pub Rc<RefCell<State>>);

/// The machine, behind the two traits.
pub struct Memory(Machine);
pub struct Tlb(Machine);

impl Machine {
    pub fn new(geometry: &Geometry, shape: Shape) -> Self {
        let root_size = geometry.root_size();
        Self(Rc::new(RefCell::new(State {
            frames: HashMap::new(),
            root_size,
            shape,
            next_frame: ROOT + root_size,
            freed: Vec::new(),
            allocated: BTreeSet::new(),
            budget: usize::MAX,
            reachable: BTreeMap::from([(ROOT, (geometry.start(), 0))]),
            live: BTreeMap::new(),
            stale: BTreeMap::new(),
            stale_tables: BTreeSet::new(),
            reported: BTreeSet::new(),
            invalidations: Vec::new(),
            completions: 0,
        })))
    }

    pub fn root(&self) -> u64 {
        ROOT
    }

    /// A second machine in the same state.
    pub fn fork(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    /// All that decides how an operation goes: the valid entries, without the addresses of tables.
    pub fn layout(&self) -> Vec<(Key, u64)> {
        let without_address = |(&key, &descriptor): (&Key, &u64)| (key, if key.2 { descriptor & !ADDRESS } else { descriptor });
        self.0.borrow().live.iter().map(without_address).collect()
    }

    pub fn parts(&self) -> (Memory, Tlb) {
        (Memory(self.clone()), Tlb(self.clone()))
    }

    /// Checks the state between operations: no stale entries, no empty tables.
    pub fn check(&self) {
        self.check_reserved();
        let state = self.0.borrow();
        for &table in &state.allocated {
            let is_empty = (0..ENTRIES).all(|index| state.word(table, index) == 0);
            assert!(!is_empty, "table {table:#x} is empty");
        }
    }

    /// Like `check`, but reserved tables may be empty.
    pub fn check_reserved(&self) {
        let state = self.0.borrow();
        assert!(state.stale.is_empty(), "not invalidated in TLBs: {:x?}", state.stale);
        assert!(state.reported.is_empty(), "maintenance was begun but not completed");
        let tables: BTreeSet<u64> = state.reachable.keys().copied().filter(|&table| table != ROOT).collect();
        assert_eq!(tables, state.allocated, "tables in use are not those allocated");
    }

    /// Number of tables but the root.
    pub fn tables(&self) -> usize {
        self.0.borrow().allocated.len()
    }

    /// The leaves: input address, output address, size, descriptor.
    pub fn leaves(&self) -> Vec<(u64, u64, u64, u64)> {
        let state = self.0.borrow();
        let leaves = state.live.iter().filter(|((_, _, is_table), _)| !is_table);
        leaves
            .map(|(&(address, level, _), &descriptor)| (address, descriptor & ADDRESS, LEVELS[level as usize].size(), descriptor))
            .collect()
    }
}

impl State {
    fn word(&self, table: u64, index: usize) -> u64 {
        let frame = table + (index / ENTRIES) as u64 * PAGE_SIZE;
        self.frames.get(&frame).map_or(0, |words| words[index % ENTRIES])
    }

    fn owns(&self, table: u64, index: usize) -> bool {
        let in_root = table == ROOT && (index as u64) < self.root_size / 8;
        in_root || (self.allocated.contains(&table) && index < ENTRIES)
    }

    /// Makes a descriptor unreachable by walks; TLBs may still hold it.
    fn retire(&mut self, level: Level, address: u64, descriptor: u64) {
        let Some(kind) = (self.shape.kind_of)(level, descriptor) else {
            return;
        };
        let key = key(address, level, kind);
        assert_eq!(self.live.remove(&key), Some(descriptor));
        self.stale.entry(key).or_default().push(descriptor);
        if kind == EntryKind::Table {
            let next = descriptor & ADDRESS;
            self.stale_tables.insert(next);
            let (below, base) = self.reachable.remove(&next).expect("was reachable");
            for index in 0..ENTRIES {
                let address = base + index as u64 * below.size();
                self.retire(below, address, self.word(next, index));
            }
        }
    }

    /// Makes a descriptor reachable by walks.
    fn introduce(&mut self, level: Level, address: u64, descriptor: u64) {
        let Some(kind) = (self.shape.kind_of)(level, descriptor) else {
            return;
        };
        self.check_stale(level, address, descriptor, kind);
        self.live.insert(key(address, level, kind), descriptor);
        if kind == EntryKind::Table {
            let next = descriptor & ADDRESS;
            let below = level.next().expect("level 3 has no tables");
            assert!(self.allocated.contains(&next), "link to a table that is not allocated");
            assert!(self.reachable.insert(next, (below, address)).is_none(), "two links");
            for index in 0..ENTRIES {
                let address = address + index as u64 * below.size();
                self.introduce(below, address, self.word(next, index));
            }
        }
    }

    /// Checks that a new entry does not conflict with a stale one.
    fn check_stale(&self, level: Level, address: u64, descriptor: u64, kind: EntryKind) {
        let same = |old: &u64| kind == EntryKind::Leaf && (old ^ descriptor) & !self.shape.permission_bits == 0;
        let here = self.stale.range((address, 0, false)..(address + level.size(), 0, false));
        for (&(start, at, is_table), old) in here {
            let same_place = (start, at) == (address, level as u8);
            let harmless = if is_table || kind == EntryKind::Table {
                // A stale table entry may coexist with leaves below it, but with no other entry in its place,
                // nor with a leaf anywhere in its range.
                !same_place && is_table
            } else {
                same_place && old.iter().all(same)
            };
            assert!(harmless, "{descriptor:#x} made at {address:#x} {level:?}, not broken: {old:x?}");
        }
        for larger in LEVELS.into_iter().filter(|&larger| larger < level) {
            let start = address & !(larger.size() - 1);
            assert!(
                !self.stale.contains_key(&key(start, larger, EntryKind::Leaf)),
                "{descriptor:#x} made at {address:#x} {level:?} under a block that is not broken"
            );
        }
    }
}

impl TableRead for Memory {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        let state = self.0.0.borrow();
        assert!(state.owns(table, index), "read of {table:#x}[{index}]");
        Ok(state.word(table, index))
    }
}

impl TableMemory for Memory {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        let state = &mut *self.0.0.borrow_mut();
        assert!(state.owns(table, index), "write to {table:#x}[{index}]");
        let frame = table + (index / ENTRIES) as u64 * PAGE_SIZE;
        let words = state.frames.entry(frame).or_insert([0; ENTRIES]);
        let old = std::mem::replace(&mut words[index % ENTRIES], descriptor);
        if let Some(&(level, base)) = state.reachable.get(&table) {
            let address = base + index as u64 * level.size();
            state.retire(level, address, old);
            state.introduce(level, address, descriptor);
        } else {
            // A table that a stale walk may reach must not gain valid entries.
            assert!(descriptor & 1 == 0 || !state.stale_tables.contains(&table));
        }
    }

    fn allocate(&mut self) -> Option<u64> {
        let state = &mut *self.0.0.borrow_mut();
        state.budget = state.budget.checked_sub(1)?;
        let frame = state.freed.pop().unwrap_or_else(|| {
            state.next_frame += PAGE_SIZE;
            state.next_frame - PAGE_SIZE
        });
        state.frames.remove(&frame);
        state.allocated.insert(frame);
        Some(frame)
    }

    fn free(&mut self, table: u64) {
        let state = &mut *self.0.0.borrow_mut();
        assert!(state.allocated.remove(&table), "{table:#x} is not allocated");
        assert!(!state.reachable.contains_key(&table), "{table:#x} is in use");
        assert!(!state.stale_tables.contains(&table), "TLBs may lead to {table:#x}");
        state.freed.push(table);
    }
}

impl Maintenance for Tlb {
    fn invalidate(&mut self, invalidation: Invalidation) {
        let Invalidation { address, level, kind } = invalidation;
        let state = &mut *self.0.0.borrow_mut();
        let key = key(address, level, kind);
        assert!(state.stale.contains_key(&key), "needless: {invalidation:x?}");
        assert!(state.reported.insert(key), "twice: {invalidation:x?}");
        state.invalidations.push(invalidation);
    }

    fn invalidate_all(&mut self) {
        let state = &mut *self.0.0.borrow_mut();
        assert!(state.live.is_empty(), "not everything is invalid");
        assert!(!state.stale.is_empty(), "needless");
        state.reported = state.stale.keys().copied().collect();
    }

    fn complete(&mut self) {
        let state = &mut *self.0.0.borrow_mut();
        assert!(!state.reported.is_empty(), "nothing to complete");
        for key in std::mem::take(&mut state.reported) {
            for descriptor in state.stale.remove(&key).into_iter().flatten() {
                if key.2 {
                    state.stale_tables.remove(&(descriptor & ADDRESS));
                }
            }
        }
        state.completions += 1;
    }
}
