//! Creating mappings.

use super::chain::Chain;
use super::format::{Attributes, Entry, Layout};
use super::level::{Piece, Span, pieces};
use super::{Error, Format, Level, PageTable, TableMemory, read};
use crate::PAGE_SIZE;

/// A range to be mapped. All three numbers are multiples of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping<P> {
    /// First input address.
    pub address: u64,
    /// First physical address.
    pub output: u64,
    /// Bytes.
    pub size: u64,
    /// Type of memory and permissions.
    pub attributes: Attributes<P>,
}

impl<F: Format> PageTable<F> {
    /// Maps a range that is still unmapped, with the largest blocks that alignment allows.
    ///
    /// Only invalid entries become valid, so no TLB maintenance is needed. The caller executes `DSB ISHST`
    /// before any use of the mapping (and `ISB`, if the mapping is for itself).
    ///
    /// # Errors
    /// Any of [`Error`]; nothing is mapped then.
    pub fn map<M: TableMemory>(&mut self, memory: &mut M, mapping: Mapping<F::Permissions>) -> Result<(), Error> {
        self.fill(memory, mapping, self.format.largest(), true)
    }

    /// Allocates the tables for mapping the range by 2 MiB blocks and pages, without mapping it. Parts of the
    /// range, each a whole number of blocks where blocks fit, can later be mapped in any order without
    /// allocation.
    ///
    /// # Errors
    /// Any of [`Error`]; nothing was changed then.
    pub fn reserve<M: TableMemory>(&mut self, memory: &mut M, mapping: Mapping<F::Permissions>) -> Result<(), Error> {
        self.fill(memory, mapping, self.format.largest().max(Level::L2), false)
    }

    fn fill<M: TableMemory>(
        &mut self,
        memory: &mut M,
        mapping: Mapping<F::Permissions>,
        largest: Level,
        leaves: bool,
    ) -> Result<(), Error> {
        let span = self.input(mapping.address, mapping.size)?;
        self.check_output(mapping.output, mapping.size)?;
        if !self.format.supports(mapping.attributes.permissions) {
            return Err(Error::Attributes);
        }
        let fill = Fill {
            // May wrap around (output below input); the addition that uses it wraps back.
            offset: mapping.output.wrapping_sub(mapping.address),
            attributes: self.format.encode(mapping.attributes),
            largest,
            leaves,
        };
        let start = self.geometry.start();
        let count = fill.tables_needed::<F::Layout, M>(memory, Some(self.root), start, 0, span)?;
        let mut spare = Chain::set_aside(memory, count)?;
        fill.write::<F::Layout, M>(memory, &mut spare, self.root, start, 0, span);
        Ok(())
    }

    /// Checks a range of physical addresses.
    fn check_output(&self, output: u64, size: u64) -> Result<(), Error> {
        if !output.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        match output.checked_add(size) {
            Some(end) if end <= self.geometry.pa_range().limit() => Ok(()),
            _ => Err(Error::OutputRange),
        }
    }
}

/// Parameters of a fill: the entries' contents.
#[derive(Clone, Copy)]
struct Fill {
    /// Output address minus input address, modulo 2^64.
    offset: u64,
    /// Attribute bits.
    attributes: u64,
    /// Level of the largest blocks.
    largest: Level,
    /// Whether leaves are written; if not, only the tables above them are.
    leaves: bool,
}

impl Fill {
    /// The page or block that maps a whole entry of `level`, if possible.
    fn leaf<L: Layout>(self, level: Level, piece: &Piece) -> Option<u64> {
        let output = piece.entry.start.wrapping_add(self.offset);
        let fits = level >= self.largest && piece.is_whole() && output.is_multiple_of(level.size());
        fits.then(|| L::leaf_descriptor(level, output, self.attributes))
    }

    /// Number of tables that [`write`](Fill::write) takes to fill `span` in the table of `level` whose first
    /// entry covers `base`. `None` stands for a table still to be made.
    fn tables_needed<L: Layout, M: TableMemory>(
        self,
        memory: &M,
        table: Option<u64>,
        level: Level,
        base: u64,
        span: Span,
    ) -> Result<usize, Error> {
        let Some(below) = level.next() else {
            return match table {
                Some(table) => self.check_pages::<L, M>(memory, table, base, span).map(|()| 0),
                None => Ok(0),
            };
        };
        let mut count = 0;
        for piece in pieces(level, base, span) {
            let entry = match table {
                Some(table) => L::entry(level, read(memory, table, piece.index)),
                None => Entry::Invalid,
            };
            let next = match entry {
                Entry::Leaf(_) => return Err(Error::AlreadyMapped(piece.covered.start)),
                Entry::Table(next) => Some(next),
                Entry::Invalid if self.leaf::<L>(level, &piece).is_some() => continue,
                Entry::Invalid => {
                    count += 1;
                    None
                }
            };
            count += self.tables_needed::<L, M>(memory, next, below, piece.entry.start, piece.covered)?;
        }
        Ok(count)
    }

    /// Checks that no page of `span` is mapped by the table of level 3 whose first entry covers `base`.
    fn check_pages<L: Layout, M: TableMemory>(self, memory: &M, table: u64, base: u64, span: Span) -> Result<(), Error> {
        for piece in pieces(Level::L3, base, span) {
            let descriptor = read(memory, table, piece.index);
            if L::entry(Level::L3, descriptor) != Entry::Invalid {
                return Err(Error::AlreadyMapped(piece.covered.start));
            }
        }
        Ok(())
    }

    /// Fills `span`, known to be unmapped, in the table of `level` whose first entry covers `base`. A new
    /// table is linked only when it is complete.
    fn write<L: Layout, M: TableMemory>(self, memory: &mut M, spare: &mut Chain, table: u64, level: Level, base: u64, span: Span) {
        for piece in pieces(level, base, span) {
            let entry = L::entry(level, read(memory, table, piece.index));
            match (entry, self.leaf::<L>(level, &piece), level.next()) {
                (Entry::Invalid, Some(leaf), _) if self.leaves => memory.write(table, piece.index, leaf),
                (Entry::Invalid, Some(_), _) => {}
                (Entry::Invalid, None, Some(below)) => {
                    let next = spare.take(memory);
                    self.write::<L, M>(memory, spare, next, below, piece.entry.start, piece.covered);
                    memory.write(table, piece.index, L::table_descriptor(level, next));
                }
                (Entry::Table(next), _, Some(below)) => {
                    self.write::<L, M>(memory, spare, next, below, piece.entry.start, piece.covered);
                }
                // `tables_needed` has ruled leaves out, and at level 3 every other entry is a page.
                (Entry::Leaf(_) | Entry::Invalid | Entry::Table(_), _, _) => {}
            }
        }
    }
}
