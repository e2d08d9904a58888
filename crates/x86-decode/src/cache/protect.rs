//! The protecting cache: relies on write protection of the pages it depends on.

use super::{Counts, Key, SETS, Victim, WAYS};
use crate::{Code, CodeSize, Context, Decoded, Refusal};
use stile_x86_walk::{GuestMemory, PAGE, trail};

/// Write-protects guest pages.
pub trait Protector {
    /// Ensures that any write to this guest-physical page, by any processor or device, leads to a call of
    /// [`Protect::forget`] before it takes effect. False if the page cannot be protected; the instruction is then not
    /// cached.
    fn protect(&mut self, page: u64) -> bool;
}

/// Decoded instructions by linear address, root table and mode. One per VM: the caller holds one lock around [`find`](Self::find), which
/// protects pages, and around [`forget`](Self::forget) including the removal of the protection. The guest's physical-address width and
/// PSE-36 must not change.
pub struct Protect {
    sets: [[Entry; WAYS]; SETS],
    victims: [Victim; SETS],
    /// The last instruction that could not be cached.
    passing: Decoded,
    counts: Counts,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    decoded: Decoded,
    /// The pages on which the entry depends, padded with [`NO_PAGE`].
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

    /// Its counters.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>, protector: &mut impl Protector) -> Result<&Decoded, Refusal> {
        let key = Key::new(code);
        if let Some(way) = self.sets[key.set()].iter().position(|entry| entry.key == key) {
            self.counts.hits += 1;
            return Ok(&self.sets[key.set()][way].decoded);
        }
        self.fill(code, key, protector)
    }

    /// Returns the decoded form of 64-bit code if it is cached; a failure is not counted.
    #[inline]
    pub fn hit(&mut self, context: &Context, linear: u64) -> Option<&Decoded> {
        let key = Key { linear, mode: context.key };
        let entry = self.sets[key.set()].iter().find(|entry| entry.key == key)?;
        self.counts.hits += 1;
        Some(&entry.decoded)
    }

    /// Drops the entries that depend on a guest-physical page, which is about to be written.
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
        // Code or tables may have changed between decoding and protection: decode again.
        if !protected || code.decode() != Ok(decoded) || self::pages(code, decoded.len()) != Some(pages) {
            return Ok(&self.passing);
        }
        let set = &mut self.sets[key.set()];
        let way = set.iter().position(|entry| entry.key == Key::VACANT).unwrap_or_else(|| {
            self.counts.evictions += 1;
            self.victims[key.set()].next(0)
        });
        set[way] = Entry { key, decoded, pages };
        Ok(&set[way].decoded)
    }
}

/// Returns the pages of the code and of the tables on its walks.
fn pages<M: GuestMemory>(code: &Code<'_, M>, length: u8) -> Option<[u64; MAX_PAGES]> {
    let mut pages = [NO_PAGE; MAX_PAGES];
    let mut slots = pages.iter_mut();
    let last = code.linear.wrapping_add(u64::from(length) - 1);
    let paging = code.context.paging();
    let last = if code.context.size() == CodeSize::Bits64 { last } else { last & u64::from(u32::MAX) };
    let crossing = (last ^ code.linear) & !(PAGE - 1) != 0;
    if crossing && paging.pointer(last) != paging.pointer(code.linear) {
        // The key holds only one of the four PDPTEs.
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
