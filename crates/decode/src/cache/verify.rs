//! The cache that looks at the code each time.

use super::{Counts, Key, SETS, Victim, WAYS};
use crate::code::Fetched;
use crate::{Code, Decoded, Refusal};
use stile_walk::{GuestMemory, PAGE, Trail};

/// Decoded instructions with the way to their code and its bytes, compared at each use. With one for each virtual processor
/// there is nothing to lock.
pub struct Verify {
    sets: [[Entry; WAYS]; SETS],
    victims: [Victim; SETS],
    counts: Counts,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    key: Key,
    trail: Trail,
    /// The instruction's bytes; zeros follow.
    bytes: [u64; 2],
    /// What of the first word is to be compared, where that alone decides; else 0.
    mask: u64,
    decoded: Decoded,
}

impl Default for Verify {
    fn default() -> Self {
        Self::new()
    }
}

impl Verify {
    /// An empty cache.
    pub const fn new() -> Self {
        let vacant = Entry { key: Key::VACANT, trail: Trail::NONE, bytes: [0; 2], mask: 0, decoded: Decoded::NOTHING };
        Self { sets: [[vacant; WAYS]; SETS], victims: [Victim(0); SETS], counts: Counts::ZERO }
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>) -> Result<&Decoded, Refusal> {
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

    #[cold]
    #[inline(never)]
    fn fill<M: GuestMemory>(&mut self, code: &Code<'_, M>) -> Result<&Decoded, Refusal> {
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
        set[way] = Entry::new(key, trail, decoded, &fetched);
        Ok(&set[way].decoded)
    }
}

impl Entry {
    fn new(key: Key, trail: Trail, decoded: Decoded, fetched: &Fetched) -> Self {
        let bytes = fetched.words(decoded.len());
        let one_word = decoded.len() <= 8 && trail.address() % PAGE <= PAGE - 8;
        let mask = if one_word { u64::MAX >> (64 - 8 * u32::from(decoded.len())) } else { 0 };
        Self { key, trail, bytes, mask, decoded }
    }

    /// Is this still what stands at `code`?
    #[inline]
    fn holds<M: GuestMemory>(&self, code: &Code<'_, M>) -> bool {
        if self.mask == 0 {
            return self.holds_long(code);
        }
        let same_bytes = |now: u64| (now ^ self.bytes[0]) & self.mask == 0;
        self.trail.unchanged(code.memory) && code.memory.read_u64(self.trail.address()).is_some_and(same_bytes)
    }

    /// The same for long instructions, and those near the end of a page or over it.
    #[cold]
    #[inline(never)]
    fn holds_long<M: GuestMemory>(&self, code: &Code<'_, M>) -> bool {
        let length = self.decoded.len();
        let same_bytes = |fetched: Fetched| fetched.words(length) == self.bytes;
        self.trail.unchanged(code.memory) && code.fetch_exactly(self.trail.address(), length).is_ok_and(same_bytes)
    }
}
