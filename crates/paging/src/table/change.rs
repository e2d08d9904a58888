//! Changing mappings: unmap and permission changes.

use super::chain::Chain;
use super::format::{Entry, Layout};
use super::level::{ENTRIES, Piece, Span, pieces};
use super::{EntryKind, Error, Format, Invalidation, Level, Maintenance, PageTable, TableMemory, read};

impl<F: Format> PageTable<F> {
    /// Unmaps a range, and frees the tables that become empty. Unmapped parts are skipped.
    ///
    /// A block that is partly in the range is split into a table. Returns the number of bytes that were
    /// mapped; a table that the memory [defers](TableMemory::defer) counts as full. All maintenance is
    /// complete on return: the memory can be reused.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InputRange`], [`Error::OutOfMemory`]; nothing is unmapped then. Memory
    /// is needed only to split blocks: four tables at most.
    pub fn unmap<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T, address: u64, size: u64) -> Result<u64, Error> {
        let span = self.input(address, size)?;
        self.change(memory, tlb, span, Change::Unmap)
    }

    /// Unmaps a range like [`unmap`](Self::unmap), but keeps the tables: mapping the range again allocates
    /// none.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    pub fn vacate<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T, address: u64, size: u64) -> Result<u64, Error> {
        let span = self.input(address, size)?;
        self.change(memory, tlb, span, Change::Vacate)
    }

    /// Changes the permissions of all mappings in a range. Unmapped parts are skipped.
    ///
    /// A block that is partly in the range is split into a table. Pages that fill a block's range within this
    /// one, and are physically contiguous, are merged into a block. Other entries are changed in place,
    /// without an invalid state in between. Returns the number of mapped bytes in the range. All maintenance
    /// is complete on return: the old permissions are no longer in effect on any CPU.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InputRange`], [`Error::Attributes`], [`Error::OutOfMemory`]; nothing is
    /// changed then. Memory is needed only to split blocks: four tables at most.
    pub fn protect<M: TableMemory, T: Maintenance>(
        &mut self,
        memory: &mut M,
        tlb: &mut T,
        address: u64,
        size: u64,
        permissions: F::Permissions,
    ) -> Result<u64, Error> {
        let span = self.input(address, size)?;
        if !self.format.supports(permissions) {
            return Err(Error::Attributes);
        }
        self.change(memory, tlb, span, Change::Protect(permissions))
    }

    /// Unmaps everything with one invalidation, and frees all tables but the root.
    pub fn clear<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T) {
        let start = self.geometry.start();
        let mut quiet = Quiet;
        let mut changer = Changer::new(&self.format, memory, &mut quiet, Change::Unmap);
        for index in 0..self.geometry.root_entries() {
            let entry = F::Layout::entry(start, read(changer.memory, self.root, index));
            if entry == Entry::Invalid {
                continue;
            }
            changer.memory.write(self.root, index, 0);
            changer.pending = true;
            if let (Entry::Table(next), Some(below)) = (entry, start.next()) {
                changer.discard(next, below, index as u64 * start.size());
            }
        }
        let Changer { garbage, pending, .. } = changer;
        if pending {
            tlb.invalidate_all();
            tlb.complete();
        }
        garbage.free(memory);
    }

    fn change<M: TableMemory, T: Maintenance>(
        &mut self,
        memory: &mut M,
        tlb: &mut T,
        span: Span,
        change: Change<F::Permissions>,
    ) -> Result<u64, Error> {
        let start = self.geometry.start();
        let mut changer = Changer::new(&self.format, memory, tlb, change);
        let count = pieces(start, 0, span)
            .map(|piece| {
                let descriptor = read(changer.memory, self.root, piece.index);
                changer.tables_needed(descriptor, start, &piece)
            })
            .sum();
        changer.spare = Chain::set_aside(changer.memory, count)?;
        let mapped = pieces(start, 0, span).map(|piece| changer.apply(self.root, start, &piece)).sum();
        changer.complete();
        let Changer { garbage, .. } = changer;
        garbage.free(memory);
        Ok(mapped)
    }
}

/// The change to the leaves in a range.
#[derive(Clone, Copy)]
enum Change<P> {
    Unmap,
    /// Unmap, and keep empty tables.
    Vacate,
    Protect(P),
}

/// Maintenance that is skipped because a wider invalidation follows.
struct Quiet;

impl Maintenance for Quiet {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}

/// An operation in progress.
struct Changer<'a, F: Format, M, T> {
    format: &'a F,
    memory: &'a mut M,
    tlb: &'a mut T,
    change: Change<F::Permissions>,
    /// Tables reserved for splitting.
    spare: Chain,
    /// Tables to be freed once all maintenance is complete.
    garbage: Chain,
    /// Whether reported invalidations are incomplete.
    pending: bool,
}

impl<'a, F: Format, M: TableMemory, T: Maintenance> Changer<'a, F, M, T> {
    fn new(format: &'a F, memory: &'a mut M, tlb: &'a mut T, change: Change<F::Permissions>) -> Self {
        let (spare, garbage) = (Chain::default(), Chain::default());
        Self { format, memory, tlb, change, spare, garbage, pending: false }
    }

    fn invalidate(&mut self, address: u64, level: Level, kind: EntryKind) {
        self.tlb.invalidate(Invalidation { address, level, kind });
        self.pending = true;
    }

    fn complete(&mut self) {
        if self.pending {
            self.tlb.complete();
            self.pending = false;
        }
    }

    /// The new descriptor of a leaf that is changed as a whole; 0 to unmap it.
    fn changed(&self, descriptor: u64) -> u64 {
        match self.change {
            Change::Unmap | Change::Vacate => 0,
            Change::Protect(permissions) => self.format.with_permissions(descriptor, permissions),
        }
    }

    /// Number of tables that [`apply`](Changer::apply) takes for an entry.
    fn tables_needed(&self, descriptor: u64, level: Level, piece: &Piece) -> usize {
        // Only a partly changed block is split.
        let (false, Some(below)) = (piece.is_whole(), level.next()) else {
            return 0;
        };
        let parts = pieces(below, piece.entry.start, piece.covered);
        match F::Layout::entry(level, descriptor) {
            Entry::Invalid => 0,
            Entry::Table(next) => parts.map(|part| self.tables_needed(read(self.memory, next, part.index), below, &part)).sum(),
            Entry::Leaf(_) if self.changed(descriptor) == descriptor => 0,
            Entry::Leaf(_) => {
                // For the count, a part of a block is equivalent to the block.
                let attributes = F::Layout::attribute_bits(descriptor);
                let child = F::Layout::leaf_descriptor(below, 0, attributes);
                1 + parts.map(|part| self.tables_needed(child, below, &part)).sum::<usize>()
            }
        }
    }

    /// Changes an entry of `table`, within `piece`. Returns the number of its bytes that are mapped.
    fn apply(&mut self, table: u64, level: Level, piece: &Piece) -> u64 {
        let descriptor = read(self.memory, table, piece.index);
        match (F::Layout::entry(level, descriptor), level.next()) {
            (Entry::Invalid, _) | (Entry::Table(_), None) => 0,
            (Entry::Leaf(_), _) if piece.is_whole() => {
                self.apply_to_leaf(table, level, piece, descriptor);
                piece.covered.len()
            }
            (Entry::Leaf(output), Some(below)) => {
                if self.changed(descriptor) != descriptor {
                    let attributes = F::Layout::attribute_bits(descriptor);
                    let next = self.split(output, attributes, below, piece);
                    let new = F::Layout::table_descriptor(level, next);
                    self.replace(table, level, piece, EntryKind::Leaf, new);
                }
                piece.covered.len()
            }
            (Entry::Leaf(_), None) => 0,
            (Entry::Table(next), Some(below)) => self.apply_to_table(table, level, piece, next, below),
        }
    }

    /// Changes a page or block as a whole.
    fn apply_to_leaf(&mut self, table: u64, level: Level, piece: &Piece, old: u64) {
        let new = self.changed(old);
        if new == old {
            return;
        }
        if new != 0 && self.format.needs_break(old, new) {
            self.replace(table, level, piece, EntryKind::Leaf, new);
            return;
        }
        self.memory.write(table, piece.index, new);
        self.invalidate(piece.entry.start, level, EntryKind::Leaf);
    }

    /// Changes the mappings in the table `next`, to which an entry of `table` points.
    fn apply_to_table(&mut self, table: u64, level: Level, piece: &Piece, next: u64, below: Level) -> u64 {
        match self.change {
            Change::Unmap if piece.is_whole() => {
                self.memory.write(table, piece.index, 0);
                self.invalidate(piece.entry.start, level, EntryKind::Table);
                return self.discard(next, below, piece.entry.start);
            }
            Change::Protect(permissions) if piece.is_whole() && level.has_leaves() => {
                if let Some((output, attributes)) = self.as_block(next, below, permissions)
                    && output % level.size() == 0
                {
                    self.memory.write(table, piece.index, 0);
                    self.invalidate(piece.entry.start, level, EntryKind::Table);
                    self.discard(next, below, piece.entry.start);
                    self.complete();
                    let block = F::Layout::leaf_descriptor(level, output, attributes);
                    self.memory.write(table, piece.index, block);
                    return piece.covered.len();
                }
            }
            Change::Unmap | Change::Vacate | Change::Protect(_) => {}
        }
        let mapped = pieces(below, piece.entry.start, piece.covered).map(|part| self.apply(next, below, &part)).sum();
        if mapped != 0 && matches!(self.change, Change::Unmap) && self.is_empty(next, below) {
            self.memory.write(table, piece.index, 0);
            self.invalidate(piece.entry.start, level, EntryKind::Table);
            self.garbage.push(self.memory, next);
        }
        mapped
    }

    /// Replaces a valid entry by one of another kind or size: break before make.
    fn replace(&mut self, table: u64, level: Level, piece: &Piece, kind: EntryKind, new: u64) {
        self.memory.write(table, piece.index, 0);
        self.invalidate(piece.entry.start, level, kind);
        self.complete();
        self.memory.write(table, piece.index, new);
    }

    /// Splits a block at `output`, of which `piece` changes, into a new table of level `below` that already
    /// includes the change.
    fn split(&mut self, output: u64, attributes: u64, below: Level, piece: &Piece) -> u64 {
        let table = self.spare.take(self.memory);
        for part in pieces(below, piece.entry.start, piece.entry) {
            let output = output + (part.entry.start - piece.entry.start);
            let old = F::Layout::leaf_descriptor(below, output, attributes);
            let new = match (part.entry.intersection(piece.covered), below.next()) {
                (None, _) => old,
                (Some(covered), Some(lower)) if covered != part.entry => {
                    let part = Piece { covered, ..part };
                    F::Layout::table_descriptor(below, self.split(output, attributes, lower, &part))
                }
                (Some(_), _) => self.changed(old),
            };
            self.memory.write(table, part.index, new);
        }
        table
    }

    /// Reports all entries of an unlinked table of `level`, and gives up the table and those below it.
    /// Returns the number of bytes it mapped, or may have mapped.
    fn discard(&mut self, table: u64, level: Level, base: u64) -> u64 {
        if self.memory.defer(table, level) {
            // Its entries are not walked.
            self.tlb.invalidate_all();
            self.pending = true;
            return ENTRIES as u64 * level.size();
        }
        let mut mapped = 0;
        for index in 0..ENTRIES {
            let address = base + index as u64 * level.size();
            match (F::Layout::entry(level, read(self.memory, table, index)), level.next()) {
                (Entry::Leaf(_), _) => {
                    self.invalidate(address, level, EntryKind::Leaf);
                    mapped += level.size();
                }
                (Entry::Table(next), Some(below)) => {
                    self.invalidate(address, level, EntryKind::Table);
                    mapped += self.discard(next, below, address);
                }
                (Entry::Invalid | Entry::Table(_), _) => {}
            }
        }
        self.garbage.push(self.memory, table);
        mapped
    }

    /// Returns output address and attribute bits of the block that could replace a table of `level`: with
    /// `permissions`, everything it maps must be one contiguous range with equal attributes.
    fn as_block(&self, table: u64, level: Level, permissions: F::Permissions) -> Option<(u64, u64)> {
        let mut first = None;
        for index in 0..ENTRIES {
            let descriptor = read(self.memory, table, index);
            let (output, attributes) = match F::Layout::entry(level, descriptor) {
                Entry::Leaf(output) => {
                    let new = self.format.with_permissions(descriptor, permissions);
                    (output, F::Layout::attribute_bits(new))
                }
                Entry::Table(next) => self.as_block(next, level.next()?, permissions)?,
                Entry::Invalid => return None,
            };
            let start = output.checked_sub(index as u64 * level.size())?;
            if *first.get_or_insert((start, attributes)) != (start, attributes) {
                return None;
            }
        }
        first
    }

    /// Whether no entry of a table is valid.
    fn is_empty(&self, table: u64, level: Level) -> bool {
        (0..ENTRIES).all(|index| F::Layout::entry(level, read(self.memory, table, index)) == Entry::Invalid)
    }
}
