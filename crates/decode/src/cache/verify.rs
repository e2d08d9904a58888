//! The cache that looks at the code each time.

use super::{Counts, SETS, WAYS, set_of};
use crate::code::Fetched;
use crate::{Code, CodeSize, Decoded, Refusal};
use stile_walk::{GuestMemory, PAGE};

/// Decoded instructions by the guest-physical address of their code. With one for each virtual processor there is
/// nothing to lock.
pub struct Verify {
    sets: [Set; SETS],
    counts: Counts,
}

#[derive(Clone, Copy)]
struct Set {
    entries: [Entry; WAYS],
    /// The entry that makes room next.
    victim: usize,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    /// Guest-physical address and code size: see [`key`].
    key: u64,
    /// The instruction's bytes; zeros follow.
    bytes: [u64; 2],
    /// What of the first word is to be compared, where that alone decides; else 0.
    mask: u64,
    decoded: Decoded,
}

/// The key of an entry that holds nothing.
const VACANT: u64 = u64::MAX;

/// Address and code size in one word: addresses have 52 bits.
#[inline]
const fn key(address: u64, size: CodeSize) -> u64 {
    address | (size as u64) << 60
}

/// The bytes from `address` to the end of its page.
#[inline]
const fn left_in_page(address: u64) -> u64 {
    PAGE - address % PAGE
}

impl Default for Verify {
    fn default() -> Self {
        Self::new()
    }
}

impl Verify {
    /// An empty cache.
    pub const fn new() -> Self {
        let vacant = Entry { key: VACANT, bytes: [0; 2], mask: 0, decoded: Decoded::NOTHING };
        Self { sets: [Set { entries: [vacant; WAYS], victim: 0 }; SETS], counts: Counts::ZERO }
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>) -> Result<Decoded, Refusal> {
        let address = code.address()?;
        let key = key(address, code.size);
        for entry in &self.sets[set_of(address)].entries {
            if entry.key == key && entry.holds(code, address) {
                self.counts.hits += 1;
                return Ok(entry.decoded);
            }
        }
        self.fill(code, address)
    }

    #[cold]
    fn fill<M: GuestMemory>(&mut self, code: &Code<'_, M>, address: u64) -> Result<Decoded, Refusal> {
        self.counts.misses += 1;
        let set = &mut self.sets[set_of(address)];
        let key = key(address, code.size);
        // What is there under this key is wrong by now, whether or not something takes its place.
        if let Some(stale) = set.entries.iter_mut().find(|entry| entry.key == key) {
            stale.key = VACANT;
            self.counts.mismatches += 1;
        }
        let (decoded, fetched) = code.decode_at(address)?;
        let entry = Entry::new(key, decoded, &fetched, left_in_page(address));
        if let Some(vacant) = set.entries.iter_mut().find(|entry| entry.key == VACANT) {
            *vacant = entry;
        } else {
            set.entries[set.victim % WAYS] = entry;
            set.victim = (set.victim + 1) % WAYS;
            self.counts.evictions += 1;
        }
        Ok(decoded)
    }
}

impl Entry {
    fn new(key: u64, decoded: Decoded, fetched: &Fetched, left: u64) -> Self {
        let bytes = fetched.words(decoded.len());
        let mask = if decoded.len() <= 8 && left >= 8 { u64::MAX >> (64 - 8 * u32::from(decoded.len())) } else { 0 };
        Self { key, bytes, mask, decoded }
    }

    /// Is this still the code at `address`?
    #[inline]
    fn holds<M: GuestMemory>(&self, code: &Code<'_, M>, address: u64) -> bool {
        if self.mask == 0 {
            return self.holds_long(code, address);
        }
        code.memory.read_u64(address).is_some_and(|now| (now ^ self.bytes[0]) & self.mask == 0)
    }

    /// The same for long instructions, and those near the end of a page or over it.
    #[cold]
    fn holds_long<M: GuestMemory>(&self, code: &Code<'_, M>, address: u64) -> bool {
        let length = self.decoded.len();
        code.fetch_exactly(address, length).is_ok_and(|fetched| fetched.words(length) == self.bytes)
    }
}
