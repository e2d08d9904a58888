//! Changing what is mapped: unmapping it, or giving it other permissions.

use super::chain::Chain;
use super::format::{Entry, Layout};
use super::level::{ENTRIES, Piece, Span, pieces};
use super::{EntryKind, Error, Format, Invalidation, Level, Maintenance, PageTable, TableMemory, read};

impl<F: Format> PageTable<F> {
    /// Unmaps a range, and frees the tables that become empty. What isn't mapped in it stays so.
    ///
    /// A block of which only a part goes is replaced by a table. Returns how many bytes were mapped; a table that the memory
    /// [defers](TableMemory::defer) counts as full. All maintenance is complete: the memory that was mapped can be used for something else.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InputRange`], [`Error::OutOfMemory`]; nothing is unmapped
    /// then. Memory is needed only where a block must be split: four tables at most.
    pub fn unmap<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T, address: u64, size: u64) -> Result<u64, Error> {
        let span = self.input(address, size)?;
        self.change(memory, tlb, span, Change::Unmap)
    }

    /// Unmaps a range as [`unmap`](Self::unmap) does, and keeps the tables: the same range can be mapped again without memory for them.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    pub fn vacate<M: TableMemory, T: Maintenance>(&mut self, memory: &mut M, tlb: &mut T, address: u64, size: u64) -> Result<u64, Error> {
        let span = self.input(address, size)?;
        self.change(memory, tlb, span, Change::Vacate)
    }

    /// Gives everything that is mapped in a range other permissions. What isn't mapped in it stays so.
    ///
    /// A block of which only a part changes is replaced by a table. Where the range covers all of
    /// a block's worth of pages that lie side by side in physical memory too, a block takes
    /// their place. Other entries are changed in place, without being invalid in between. Returns
    /// how many bytes are mapped in the range. All maintenance is complete: nobody has the old
    /// permissions any more.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InputRange`], [`Error::Attributes`], [`Error::OutOfMemory`];
    /// nothing is changed then. Memory is needed only where a block must be split: four tables
    /// at most.
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

/// What becomes of the leaves in a range.
#[derive(Clone, Copy)]
enum Change<P> {
    Unmap,
    /// Unmap, and keep empty tables.
    Vacate,
    Protect(P),
}

/// Maintenance that is not needed because something wider will be done.
struct Quiet;

impl Maintenance for Quiet {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}

/// An operation under way.
struct Changer<'a, F: Format, M, T> {
    format: &'a F,
    memory: &'a mut M,
    tlb: &'a mut T,
    change: Change<F::Permissions>,
    /// Tables set aside for splitting.
    spare: Chain,
    /// Tables to be freed once all maintenance is complete.
    garbage: Chain,
    /// Whether invalidations were reported that are not complete.
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

    /// What becomes of a leaf that is changed as a whole: another descriptor, or 0.
    fn changed(&self, descriptor: u64) -> u64 {
        match self.change {
            Change::Unmap | Change::Vacate => 0,
            Change::Protect(permissions) => self.format.with_permissions(descriptor, permissions),
        }
    }

    /// How many tables [`apply`](Changer::apply) will take for an entry.
    fn tables_needed(&self, descriptor: u64, level: Level, piece: &Piece) -> usize {
        // Only a block that changes in part is split.
        let (false, Some(below)) = (piece.is_whole(), level.next()) else {
            return 0;
        };
        let parts = pieces(below, piece.entry.start, piece.covered);
        match F::Layout::entry(level, descriptor) {
            Entry::Invalid => 0,
            Entry::Table(next) => parts.map(|part| self.tables_needed(read(self.memory, next, part.index), below, &part)).sum(),
            Entry::Leaf(_) if self.changed(descriptor) == descriptor => 0,
            Entry::Leaf(_) => {
                // As far as the count goes, a part of a block is like the block.
                let attributes = F::Layout::attribute_bits(descriptor);
                let child = F::Layout::leaf_descriptor(below, 0, attributes);
                1 + parts.map(|part| self.tables_needed(child, below, &part)).sum::<usize>()
            }
        }
    }

    /// Changes an entry of `table`, as far as `piece` says. Returns how many bytes of it are mapped.
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
                    let new = F::Layout::table_descriptor(next);
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

    /// Changes what the table `next`, to which an entry of `table` leads, maps.
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

    /// Puts `new` in the place of a valid entry of another kind or size: break before make.
    fn replace(&mut self, table: u64, level: Level, piece: &Piece, kind: EntryKind, new: u64) {
        self.memory.write(table, piece.index, 0);
        self.invalidate(piece.entry.start, level, kind);
        self.complete();
        self.memory.write(table, piece.index, new);
    }

    /// Makes a table of level `below` for a block at `output` of which `piece` changes. It has the
    /// change in it already.
    fn split(&mut self, output: u64, attributes: u64, below: Level, piece: &Piece) -> u64 {
        let table = self.spare.take(self.memory);
        for part in pieces(below, piece.entry.start, piece.entry) {
            let output = output + (part.entry.start - piece.entry.start);
            let old = F::Layout::leaf_descriptor(below, output, attributes);
            let new = match (part.entry.intersection(piece.covered), below.next()) {
                (None, _) => old,
                (Some(covered), Some(lower)) if covered != part.entry => {
                    let part = Piece { covered, ..part };
                    F::Layout::table_descriptor(self.split(output, attributes, lower, &part))
                }
                (Some(_), _) => self.changed(old),
            };
            self.memory.write(table, part.index, new);
        }
        table
    }

    /// Reports everything in a table of `level` that nothing leads to any more, and gives up
    /// the table and those below it. Returns how many bytes it mapped, or may have mapped.
    fn discard(&mut self, table: u64, level: Level, base: u64) -> u64 {
        if self.memory.defer(table, level) {
            // Its entries are not looked at.
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

    /// If all that a table of `level` maps would, with `permissions`, be one contiguous range of the same
    /// attributes: its output address and attribute bits.
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
