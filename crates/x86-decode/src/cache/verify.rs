//! The verifying cache: compares code and translation at each hit.

use super::{Counters, Key, SETS, Victim, WAYS, count};
use crate::code::Fetched;
use crate::{Code, Context, Decoded, Refusal};
use stile_x86_walk::{GuestMemory, PAGE, Trail};

/// Decoded instructions with their translations and bytes, which are compared at each hit. One per vCPU needs no lock. Its [`Counters`] are
/// elsewhere, since others read them.
pub struct Verify<M: GuestMemory> {
    sets: [[Entry<M>; WAYS]; SETS],
    victims: [Victim; SETS],
}

/// Table entries compared without a walk: those of 4-level paging.
const TABLES: usize = 4;

#[repr(align(64))]
struct Entry<M: GuestMemory> {
    key: Key,
    /// The entries of the guest's tables that lead to the code.
    tables: [(M::Place, u64); TABLES],
    /// The locations of the words that contain the code.
    code: [M::Place; 2],
    /// The instruction's bytes; zeros follow.
    bytes: [u64; 2],
    /// Masks of the instruction's bytes in the words. If the first is 0, a walk replaces the comparison, and `tables` never match.
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
        Self { sets: [[Entry::VACANT; WAYS]; SETS], victims: [Victim(0); SETS] }
    }

    /// Returns the decoded form of the instruction at `code`.
    #[inline]
    pub fn find(&mut self, code: &Code<'_, M>, counters: &Counters) -> Result<&Decoded, Refusal> {
        let key = Key::new(code);
        let set = &self.sets[key.set()];
        if let Some(way) = set.iter().position(|entry| entry.key == key)
            && set[way].holds(code)
        {
            count(&counters.hits);
            return Ok(&self.sets[key.set()][way].decoded);
        }
        self.find_elsewhere(code, counters)
    }

    /// Finds the same code under another root, as processes share a kernel's: its entry moves to this one. Returns the way.
    fn move_to_root(&mut self, code: &Code<'_, M>, key: Key) -> Option<usize> {
        let set = &mut self.sets[key.set()];
        if set.iter().any(|entry| entry.key == key) {
            // Stale.
            return None;
        }
        let way = set.iter().position(|entry| entry.key.differs_in_root(key))?;
        set[way] = set[way].under_root(code, key)?;
        Some(way)
    }

    /// Returns the decoded form of 64-bit code if the comparison of cached locations succeeds; a failure is not counted.
    #[inline]
    pub fn hit(&mut self, memory: &M, context: &Context, linear: u64, counters: &Counters) -> Option<&Decoded> {
        let key = Key { linear, mode: context.key };
        let entry = self.sets[key.set()].iter().find(|entry| entry.key == key)?;
        if !entry.holds_at_once(memory) {
            return None;
        }
        count(&counters.hits);
        Some(&entry.decoded)
    }

    /// Answers a miss of the linear key: by an entry of another root, or by a decode.
    #[cold]
    #[inline(never)]
    fn find_elsewhere(&mut self, code: &Code<'_, M>, counters: &Counters) -> Result<&Decoded, Refusal> {
        let key = Key::new(code);
        if let Some(way) = self.move_to_root(code, key) {
            count(&counters.hits);
            return Ok(&self.sets[key.set()][way].decoded);
        }
        count(&counters.misses);
        let set = &mut self.sets[key.set()];
        // An entry with this key is stale, whether or not a new one replaces it.
        if let Some(stale) = set.iter_mut().find(|entry| entry.key == key) {
            stale.key = Key::VACANT;
            count(&counters.mismatches);
        }
        let trail = code.trail()?;
        let (decoded, fetched) = code.decode_at(trail.address())?;
        let way = set.iter().position(|entry| entry.key == Key::VACANT).unwrap_or_else(|| {
            count(&counters.evictions);
            self.victims[key.set()].next(1)
        });
        // First in its set, where a hit takes the fewest comparisons: code that is new runs more often than code that was there before.
        set.swap(0, way);
        set[0] = Entry::new(code.memory, key, &trail, decoded, &fetched);
        Ok(&set[0].decoded)
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

    /// Resolves the locations to compare, if [`holds`](Self::holds) supports them: at most four eight-byte entries, and code within one
    /// page whose words can be read.
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

    /// The entry for the root of `code`, if tables and code are as they were under its own.
    fn under_root(&self, code: &Code<'_, M>, key: Key) -> Option<Self> {
        let mut entry = Self { key, ..*self };
        if self.masks[0] != 0 {
            entry.tables[0].0 = code.memory.place(code.context.paging().root_entry(code.linear)?)?;
        }
        entry.holds(code).then_some(entry)
    }

    /// Whether the entry still matches memory.
    #[inline]
    fn holds(&self, code: &Code<'_, M>) -> bool {
        if self.masks[0] == 0 { self.holds_elsewhere(code) } else { self.holds_at_once(code.memory) }
    }

    /// Compares the cached locations. False if there are none.
    #[inline]
    fn holds_at_once(&self, memory: &M) -> bool {
        let [a, b, c, d] = self.tables.map(|(place, value)| memory.look(place) ^ value);
        let first = (memory.look(self.code[0]) ^ self.bytes[0]) & self.masks[0];
        a | b | c | d | first == 0 && (self.masks[1] == 0 || (memory.look(self.code[1]) ^ self.bytes[1]) & self.masks[1] == 0)
    }

    /// Compares by a walk. The decoded form depends only on the bytes and on the code size, which is in the key.
    #[cold]
    #[inline(never)]
    fn holds_elsewhere(&self, code: &Code<'_, M>) -> bool {
        let length = self.decoded.len();
        code.fetch_exactly(length).is_ok_and(|fetched| fetched.words(length) == self.bytes)
    }
}
