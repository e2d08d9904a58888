//! The cache that has its pages protected.

use super::{Counts, SETS, WAYS, set_of};
use crate::{Code, CodeSize, Decoded, Refusal};
use stile_walk::{GuestMemory, PAGE, Tables, trail};

/// Takes from the guest the right to write pages unseen.
pub trait Protector {
    /// From now on until [`Protect::forget`] is called for it, a write to this guest-physical page, by whomever, must end in
    /// that call before it takes effect. False if that can't be had for this page; then nothing is remembered.
    fn protect(&mut self, page: u64) -> bool;
}

/// Decoded instructions by linear address, root of the tables and mode. One for each VM: the caller holds one lock
/// around [`find`](Self::find), which protects pages, and around [`forget`](Self::forget) with the lifting of the protection
/// that follows it. A guest that changes its physical-address width or PSE-36 is not provided for.
pub struct Protect {
    sets: [Set; SETS],
    counts: Counts,
}

#[derive(Clone, Copy)]
struct Set {
    entries: [Entry; WAYS],
    /// The entry that makes room next.
    victim: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    decoded: Decoded,
    /// The pages that the entry depends on; the rest is [`NO_PAGE`].
    pages: [u64; MAX_PAGES],
}

/// Two walks of five tables, and the pages of the code.
const MAX_PAGES: usize = 12;
const NO_PAGE: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    linear: u64,
    root: u64,
    mode: u64,
}

/// A mode that no processor is in.
const VACANT: Key = Key { linear: 0, root: 0, mode: u64::MAX };

impl Key {
    #[inline]
    fn new<M>(code: &Code<'_, M>) -> Self {
        let root = match code.paging.tables() {
            // Then the processor holds the root itself, and CR3 says nothing.
            Tables::Pae(pointers) => pointers[(code.linear >> 30 & 3) as usize],
            _ => code.paging.root(),
        };
        let mode = code.paging.fetch_mode() | u64::from(code.user) << 8 | (code.size as u64) << 9;
        Self { linear: code.linear, root, mode }
    }
}

impl Default for Protect {
    fn default() -> Self {
        Self::new()
    }
}

impl Protect {
    /// An empty cache.
    pub const fn new() -> Self {
        let vacant = Entry { key: VACANT, decoded: Decoded::NOTHING, pages: [NO_PAGE; MAX_PAGES] };
        Self { sets: [Set { entries: [vacant; WAYS], victim: 0 }; SETS], counts: Counts::ZERO }
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>, protector: &mut impl Protector) -> Result<Decoded, Refusal> {
        let key = Key::new(code);
        for entry in &self.sets[set_of(code.linear)].entries {
            if entry.key == key {
                self.counts.hits += 1;
                return Ok(entry.decoded);
            }
        }
        self.fill(code, key, protector)
    }

    /// Drops what depends on a guest-physical page, which is about to be written.
    #[cold]
    pub fn forget(&mut self, page: u64) {
        let page = page & !(PAGE - 1);
        for entry in self.sets.iter_mut().flat_map(|set| &mut set.entries) {
            if entry.key != VACANT && entry.pages.contains(&page) {
                entry.key = VACANT;
                self.counts.dropped += 1;
            }
        }
    }

    #[cold]
    fn fill<M: GuestMemory>(&mut self, code: &Code<'_, M>, key: Key, protector: &mut impl Protector) -> Result<Decoded, Refusal> {
        self.counts.misses += 1;
        let decoded = code.decode()?;
        let Some(pages) = pages(code, decoded.len()) else {
            return Ok(decoded);
        };
        let protected = pages.iter().take_while(|&&page| page != NO_PAGE).all(|&page| protector.protect(page));
        // What was read before may have changed before the pages were protected.
        if !protected || code.decode() != Ok(decoded) || self::pages(code, decoded.len()) != Some(pages) {
            return Ok(decoded);
        }
        let set = &mut self.sets[set_of(code.linear)];
        let entry = Entry { key, decoded, pages };
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

/// The pages that decide what the instruction is.
fn pages<M: GuestMemory>(code: &Code<'_, M>, length: u8) -> Option<[u64; MAX_PAGES]> {
    let mut pages = [NO_PAGE; MAX_PAGES];
    let mut slots = pages.iter_mut();
    let last = code.linear.wrapping_add(u64::from(length) - 1);
    let last = if code.size == CodeSize::Bits64 { last } else { last & u64::from(u32::MAX) };
    let crossing = (last ^ code.linear) & !(PAGE - 1) != 0;
    if crossing && matches!(code.paging.tables(), Tables::Pae(_)) && (last ^ code.linear) >> 30 != 0 {
        // The key holds one of the processor's four roots only.
        return None;
    }
    for linear in [Some(code.linear), crossing.then_some(last)].into_iter().flatten() {
        let trail = trail(code.memory, code.paging, linear, code.user).ok()?;
        for &page in trail.tables().iter().chain([&(trail.address & !(PAGE - 1))]) {
            *slots.next()? = page;
        }
    }
    Some(pages)
}
