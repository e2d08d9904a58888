//! The cache that looks at the code each time.

use super::{Counts, Key, SETS, Victim, WAYS};
use crate::code::Fetched;
use crate::{Code, Context, Decoded, Refusal};
use stile_walk::{GuestMemory, PAGE, Trail};

/// Decoded instructions with the way to their code and its bytes, compared at each use. With one for each virtual processor
/// there is nothing to lock.
pub struct Verify<M: GuestMemory> {
    sets: [[Entry<M>; WAYS]; SETS],
    victims: [Victim; SETS],
    counts: Counts,
}

/// Entries of tables that are compared without a walk: those of four levels.
const TABLES: usize = 4;

#[repr(align(64))]
struct Entry<M: GuestMemory> {
    key: Key,
    /// The entries of the guest's tables that lead to the code.
    tables: [(M::Place, u64); TABLES],
    /// The words that the code is in.
    code: [M::Place; 2],
    /// The instruction's bytes; zeros follow.
    bytes: [u64; 2],
    /// What of the words is the instruction. With none of the first, it is looked for by a walk, and `tables` are what no memory holds.
    masks: [u64; 2],
    decoded: Decoded,
}

impl<M: GuestMemory> Clone for Entry<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: GuestMemory> Copy for Entry<M> {}

impl<M: GuestMemory> Default for Verify<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: GuestMemory> Verify<M> {
    /// An empty cache.
    pub const fn new() -> Self {
        Self { sets: [[Entry::VACANT; WAYS]; SETS], victims: [Victim(0); SETS], counts: Counts::ZERO }
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find(&mut self, code: &Code<'_, M>) -> Result<&Decoded, Refusal> {
        let key = Key::new(code);
        let set = &self.sets[key.set()];
        if let Some(way) = set.iter().position(|entry| entry.key == key)
            && set[way].holds(code)
        {
            self.counts.hits += 1;
            return Ok(&self.sets[key.set()][way].decoded);
        }
        self.fill(code)
    }

    /// The same for 64-bit code, if it is found at once; if not, nothing is counted.
    #[inline]
    pub fn hit(&mut self, memory: &M, context: &Context, linear: u64) -> Option<&Decoded> {
        let key = Key { linear, mode: context.key };
        let entry = self.sets[key.set()].iter().find(|entry| entry.key == key)?;
        if !entry.holds_at_once(memory) {
            return None;
        }
        self.counts.hits += 1;
        Some(&entry.decoded)
    }

    #[cold]
    #[inline(never)]
    fn fill(&mut self, code: &Code<'_, M>) -> Result<&Decoded, Refusal> {
        self.counts.misses += 1;
        let key = Key::new(code);
        let set = &mut self.sets[key.set()];
        // What is there under this key is wrong by now, whether or not something takes its place.
        if let Some(stale) = set.iter_mut().find(|entry| entry.key == key) {
            stale.key = Key::VACANT;
            self.counts.mismatches += 1;
        }
        let trail = code.trail()?;
        let (decoded, fetched) = code.decode_at(trail.address())?;
        let way = set.iter().position(|entry| entry.key == Key::VACANT).unwrap_or_else(|| {
            self.counts.evictions += 1;
            self.victims[key.set()].next()
        });
        set[way] = Entry::new(code.memory, key, &trail, decoded, &fetched);
        Ok(&set[way].decoded)
    }
}

impl<M: GuestMemory> Entry<M> {
    const VACANT: Self = Self {
        key: Key::VACANT,
        tables: [(M::ZEROS, 1); TABLES],
        code: [M::ZEROS; 2],
        bytes: [0; 2],
        masks: [0; 2],
        decoded: Decoded::NOTHING,
    };

    fn new(memory: &M, key: Key, trail: &Trail, decoded: Decoded, fetched: &Fetched) -> Self {
        let entry = Self { key, bytes: fetched.words(decoded.len()), decoded, ..Self::VACANT };
        entry.with_places(memory, trail).unwrap_or(entry)
    }

    /// Notes what is to be compared, if it is what [`holds`](Self::holds) can compare: eight-byte entries, four at most, and
    /// code in one page, with room to read its words.
    fn with_places(mut self, memory: &M, trail: &Trail) -> Option<Self> {
        let words = usize::from(self.decoded.len()).div_ceil(8);
        if trail.narrow() || trail.entries().len() > TABLES || trail.address() % PAGE > PAGE - 8 * words as u64 {
            return None;
        }
        self.tables = [(M::ZEROS, 0); TABLES];
        for (slot, &(address, value)) in self.tables.iter_mut().zip(trail.entries()) {
            *slot = (memory.place(address)?, value);
        }
        for (word, slot) in self.code.iter_mut().enumerate().take(words) {
            *slot = memory.place(trail.address() + 8 * word as u64)?;
        }
        let mask = u128::MAX >> (128 - 8 * u32::from(self.decoded.len()));
        self.masks = [mask as u64, (mask >> 64) as u64];
        Some(self)
    }

    /// Is this still what stands at `code`?
    #[inline]
    fn holds(&self, code: &Code<'_, M>) -> bool {
        if self.masks[0] == 0 { self.holds_elsewhere(code) } else { self.holds_at_once(code.memory) }
    }

    /// The same, if what is to be compared was noted; else false.
    #[inline]
    fn holds_at_once(&self, memory: &M) -> bool {
        let [a, b, c, d] = self.tables.map(|(place, value)| memory.look(place) ^ value);
        let first = (memory.look(self.code[0]) ^ self.bytes[0]) & self.masks[0];
        a | b | c | d | first == 0 && (self.masks[1] == 0 || (memory.look(self.code[1]) ^ self.bytes[1]) & self.masks[1] == 0)
    }

    /// The same by a walk. A decoded form depends on nothing but the bytes and the code size, which is in the key.
    #[cold]
    #[inline(never)]
    fn holds_elsewhere(&self, code: &Code<'_, M>) -> bool {
        let length = self.decoded.len();
        code.fetch_exactly(length).is_ok_and(|fetched| fetched.words(length) == self.bytes)
    }
}
