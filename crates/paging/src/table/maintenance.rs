//! Which TLB invalidation a change of tables asks for, and when.

use super::Level;
use heapless::Vec;

/// What kind of entry an [`Invalidation`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A page or block descriptor. An invalidation of the last level only is enough
    /// (`TLBI IPAS2LE1IS`, `TLBI VALE2IS`), and [`Invalidation::level`] may go with it as TTL hint.
    Leaf,
    /// A table descriptor, which a TLB may hold to shorten walks. Needs an invalidation of all
    /// levels (`TLBI IPAS2E1IS`, `TLBI VAE2IS`) without TTL hint.
    Table,
}

/// One entry that TLBs must forget.
///
/// One TLB maintenance instruction with `address` is enough whatever the size of the entry: it
/// removes every copy of the descriptor that translates the address, also where a TLB keeps a
/// block in pieces. See "TLB maintenance instructions" in the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalidation {
    /// First input address that the entry translates.
    pub address: u64,
    /// Level of the entry; [`Level::size`] says how many bytes it covers.
    pub level: Level,
    /// Kind of the entry.
    pub kind: EntryKind,
}

/// TLB maintenance, as done by whoever owns the tables.
///
/// The walker calls [`invalidate`](Maintenance::invalidate) once for each valid entry that it
/// changed, right after it wrote the entry, and [`complete`](Maintenance::complete)
/// * between the break and the make, where the manual's "Using break-before-make when updating
///   translation table entries" asks for it (a block and a table in each other's place), and
/// * once at the end of an operation, before it frees tables and returns.
///
/// An entry that was invalid before needs no invalidation, and none is reported. An implementation
/// may do the maintenance at once or gather it (see [`Pending`]) until `complete`.
pub trait Maintenance {
    /// The entry was valid and was just made invalid, or given other permissions.
    fn invalidate(&mut self, invalidation: Invalidation);

    /// Every entry of the table was just made invalid.
    fn invalidate_all(&mut self);

    /// Returns only when all invalidations reported so far have finished on all CPUs: for the second
    /// stage `DSB ISHST`, the invalidations by IPA, `DSB ISH`, `TLBI VMALLE1IS` (for entries that
    /// combine both stages), `DSB ISH`. Called only if there was an invalidation since the last time.
    fn complete(&mut self);
}

/// Gathers up to `N` invalidations, and gives up on telling them apart when there are more.
///
/// Beyond some number, one invalidation of everything is cheaper than one for each entry; `N` is that
/// number.
#[derive(Debug, Default)]
pub struct Pending<const N: usize> {
    list: Vec<Invalidation, N>,
    all: bool,
}

impl<const N: usize> Pending<N> {
    /// Nothing gathered.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: Vec::new(), all: false }
    }

    /// Adds one invalidation.
    pub fn push(&mut self, invalidation: Invalidation) {
        if !self.all && self.list.push(invalidation).is_err() {
            self.push_all();
        }
    }

    /// Adds the invalidation of everything.
    pub fn push_all(&mut self) {
        self.all = true;
        self.list.clear();
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all && self.list.is_empty()
    }

    /// The gathered entries, or `None` if everything must be invalidated.
    #[must_use]
    pub fn entries(&self) -> Option<&[Invalidation]> {
        (!self.all).then_some(self.list.as_slice())
    }

    /// Forgets what was gathered, when it is done.
    pub fn clear(&mut self) {
        self.all = false;
        self.list.clear();
    }
}
