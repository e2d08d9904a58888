//! TLB maintenance required by changes of tables.

use super::Level;
use heapless::Vec;

/// The kind of entry that an [`Invalidation`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A page or block descriptor. Last-level invalidation is sufficient (`TLBI IPAS2LE1IS`, `TLBI VALE2IS`),
    /// optionally with [`Invalidation::level`] as TTL hint.
    Leaf,
    /// A table descriptor, which a TLB may cache to shorten walks. Needs an invalidation of all levels (`TLBI
    /// IPAS2E1IS`, `TLBI VAE2IS`) without TTL hint.
    Table,
}

/// One entry to invalidate in all TLBs.
///
/// One TLB maintenance instruction with `address` is sufficient for an entry of any size: it removes
/// every copy of the descriptor that translates the address, even if the TLB caches a block in fragments. See
/// "TLB maintenance instructions" in the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalidation {
    /// First input address that the entry translates.
    pub address: u64,
    /// Level of the entry; [`Level::size`] is the number of bytes it covers.
    pub level: Level,
    /// Kind of the entry.
    pub kind: EntryKind,
}

/// TLB maintenance, implemented by the owner of the tables.
///
/// The walker calls [`invalidate`](Maintenance::invalidate) once for each valid entry that it changed, right
/// after the write, and [`complete`](Maintenance::complete)
/// * between break and make, where the manual's "Using break-before-make when updating translation table
///   entries" requires it (a block replaced by a table, or the reverse), and
/// * once at the end of an operation, before it frees tables and returns.
///
/// Formerly invalid entries need no invalidation, and are not reported. An implementation may do the
/// maintenance immediately, or batch it (see [`Pending`]) until `complete`.
pub trait Maintenance {
    /// A valid entry was just made invalid, or its permissions changed.
    fn invalidate(&mut self, invalidation: Invalidation);

    /// All entries of the table were just made invalid.
    fn invalidate_all(&mut self);

    /// Returns when all invalidations reported so far are complete on all CPUs: for the second stage `DSB
    /// ISHST`, the invalidations by IPA, `DSB ISH`, `TLBI VMALLE1IS` (for entries that combine both stages),
    /// `DSB ISH`. Called only if there was an invalidation since the last call.
    fn complete(&mut self);
}

/// Batches up to `N` invalidations; beyond that, invalidates everything.
///
/// `N` is the number of entries at which one invalidation of everything becomes cheaper than one per entry.
#[derive(Debug, Default)]
pub struct Pending<const N: usize> {
    list: Vec<Invalidation, N>,
    all: bool,
}

impl<const N: usize> Pending<N> {
    /// An empty batch.
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

    /// Whether no invalidation is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all && self.list.is_empty()
    }

    /// The batched entries, or `None` if everything must be invalidated.
    #[must_use]
    pub fn entries(&self) -> Option<&[Invalidation]> {
        (!self.all).then_some(self.list.as_slice())
    }

    /// Empties the batch after its invalidations are done.
    pub fn clear(&mut self) {
        self.all = false;
        self.list.clear();
    }
}
