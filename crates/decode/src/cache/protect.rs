//! The cache that has its pages protected.

use super::{Counts, Key, SETS, Victim, WAYS};
use crate::{Code, CodeSize, Context, Decoded, Refusal};
use stile_walk::{GuestMemory, PAGE, trail};

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
    sets: [[Entry; WAYS]; SETS],
    victims: [Victim; SETS],
    /// An instruction that could not be remembered.
    passing: Decoded,
    counts: Counts,
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

impl Default for Protect {
    fn default() -> Self {
        Self::new()
    }
}

impl Protect {
    /// An empty cache.
    pub const fn new() -> Self {
        let vacant = Entry { key: Key::VACANT, decoded: Decoded::NOTHING, pages: [NO_PAGE; MAX_PAGES] };
        Self { sets: [[vacant; WAYS]; SETS], victims: [Victim(0); SETS], passing: Decoded::NOTHING, counts: Counts::ZERO }
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>, protector: &mut impl Protector) -> Result<&Decoded, Refusal> {
        let key = Key::new(code);
        if let Some(way) = self.sets[key.set()].iter().position(|entry| entry.key == key) {
            self.counts.hits += 1;
            return Ok(&self.sets[key.set()][way].decoded);
        }
        self.fill(code, key, protector)
    }

    /// The same for 64-bit code, if it is there; if not, nothing is counted.
    #[inline]
    pub fn hit(&mut self, context: &Context, linear: u64) -> Option<&Decoded> {
        let key = Key { linear, mode: context.key };
        let entry = self.sets[key.set()].iter().find(|entry| entry.key == key)?;
        self.counts.hits += 1;
        Some(&entry.decoded)
    }

    /// Drops what depends on a guest-physical page, which is about to be written.
    #[cold]
    pub fn forget(&mut self, page: u64) {
        let page = page & !(PAGE - 1);
        for entry in self.sets.iter_mut().flatten() {
            if entry.key != Key::VACANT && entry.pages.contains(&page) {
                entry.key = Key::VACANT;
                self.counts.dropped += 1;
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        for entry in self.sets.iter_mut().flatten().filter(|entry| entry.key != Key::VACANT) {
            entry.key = Key::VACANT;
            self.counts.dropped += 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn fill<M: GuestMemory>(&mut self, code: &Code<'_, M>, key: Key, protector: &mut impl Protector) -> Result<&Decoded, Refusal> {
        self.counts.misses += 1;
        self.passing = code.decode()?;
        let decoded = self.passing;
        let Some(pages) = pages(code, decoded.len()) else {
            return Ok(&self.passing);
        };
        let protected = pages.iter().take_while(|&&page| page != NO_PAGE).all(|&page| protector.protect(page));
        // What was read before may have changed before the pages were protected.
        if !protected || code.decode() != Ok(decoded) || self::pages(code, decoded.len()) != Some(pages) {
            return Ok(&self.passing);
        }
        let set = &mut self.sets[key.set()];
        let way = set.iter().position(|entry| entry.key == Key::VACANT).unwrap_or_else(|| {
            self.counts.evictions += 1;
            self.victims[key.set()].next()
        });
        set[way] = Entry { key, decoded, pages };
        Ok(&set[way].decoded)
    }
}

/// The pages that decide what the instruction is.
fn pages<M: GuestMemory>(code: &Code<'_, M>, length: u8) -> Option<[u64; MAX_PAGES]> {
    let mut pages = [NO_PAGE; MAX_PAGES];
    let mut slots = pages.iter_mut();
    let last = code.linear.wrapping_add(u64::from(length) - 1);
    let paging = code.context.paging();
    let last = if code.context.size() == CodeSize::Bits64 { last } else { last & u64::from(u32::MAX) };
    let crossing = (last ^ code.linear) & !(PAGE - 1) != 0;
    if crossing && paging.pointer(last) != paging.pointer(code.linear) {
        // The key holds one of the processor's four roots only.
        return None;
    }
    for linear in [Some(code.linear), crossing.then_some(last)].into_iter().flatten() {
        let trail = trail(code.memory, paging, linear, code.context.user()).ok()?;
        for page in trail.tables().chain([trail.address() & !(PAGE - 1)]) {
            *slots.next()? = page;
        }
    }
    Some(pages)
}
