//! Pages of a VM that were copied while it runs, so that only those that changed are copied again.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use stile_snapshot::pages::{BLOCK_SIZE, Builder, Entry, PAGE, WINDOW, entries};

/// The pages, by a hash of their contents. Its keys are random: a VM can't choose pages with the same hash, which would
/// harm only itself.
#[derive(Debug, Default)]
pub struct Sent {
    keys: RandomState,
    /// Blocks of which something was copied.
    blocks: BTreeSet<u64>,
    /// Pages that are not zero, and their hashes.
    pages: BTreeMap<u64, u64>,
}

impl Sent {
    /// Reduces a piece, which Stile saved from one address to another, to what has changed. Returns pieces, and the number
    /// of their pages.
    pub fn reduce(&mut self, (from, next): (u64, u64), piece: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let mut to = Pieces::default();
        let mut at = from;
        // End of the block at hand, of which pages without an entry are zero: first the rest of one, if any.
        let mut end = from.next_multiple_of(BLOCK_SIZE);
        for entry in entries(piece, piece.len()) {
            match entry {
                Entry::Block(block) => {
                    self.clear(at, end, &mut to);
                    if self.blocks.insert(block) {
                        to.block(block);
                    }
                    (at, end) = (block, block.saturating_add(BLOCK_SIZE));
                }
                Entry::Page(page, offset) => {
                    self.clear(at, page, &mut to);
                    at = page + PAGE as u64;
                    let contents = piece.get(offset..offset + PAGE).unwrap_or_default();
                    let hash = self.keys.hash_one(contents);
                    if self.pages.insert(page, hash) != Some(hash) {
                        to.page(page, contents);
                    }
                }
            }
        }
        self.clear(at, end.min(next), &mut to);
        to.finish()
    }

    /// The pages from `start` to `end` are zero.
    fn clear(&mut self, start: u64, end: u64, to: &mut Pieces) {
        while let Some(page) = (start < end).then(|| self.pages.range(start..end).next()).flatten().map(|(&page, _)| page) {
            self.pages.remove(&page);
            to.page(page, &[0; PAGE]);
        }
    }
}

/// Pieces that are being written.
#[derive(Default)]
struct Pieces {
    complete: Vec<Vec<u8>>,
    builder: Builder,
    piece: Vec<u8>,
    pages: u64,
}

impl Pieces {
    fn block(&mut self, block: u64) {
        self.make_room();
        self.builder.block(&mut self.piece[..], block);
    }

    fn page(&mut self, page: u64, contents: &[u8]) {
        self.make_room();
        let offset = self.builder.page(&mut self.piece[..], page);
        if let Some(place) = self.piece.get_mut(offset..offset + PAGE).filter(|place| place.len() == contents.len()) {
            place.copy_from_slice(contents);
        }
        self.pages += 1;
    }

    fn make_room(&mut self) {
        if !self.builder.has_room() {
            self.complete();
        }
        self.piece.resize(WINDOW, 0);
    }

    fn complete(&mut self) {
        let builder = std::mem::take(&mut self.builder);
        let mut piece = std::mem::take(&mut self.piece);
        if !piece.is_empty() {
            let length = builder.finish(&mut piece[..]);
            piece.truncate(length);
            self.complete.push(piece);
        }
    }

    fn finish(mut self) -> (Vec<Vec<u8>>, u64) {
        self.complete();
        (self.complete, self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece with these entries; a page has the contents of its number, 0 is that of a block.
    fn piece(of: &[(u64, u8)]) -> Vec<u8> {
        let mut pieces = Pieces::default();
        for &(address, contents) in of {
            if contents == 0 { pieces.block(address) } else { pieces.page(address, &[contents; PAGE]) }
        }
        pieces.finish().0.pop().unwrap_or_default()
    }

    /// As [`piece`], of the answer; a page of zeros is 255.
    fn reduce(sent: &mut Sent, range: (u64, u64), of: &[(u64, u8)]) -> Vec<(u64, u8)> {
        let (pieces, pages) = sent.reduce(range, &piece(of));
        let all: Vec<_> = pieces
            .iter()
            .flat_map(|piece| {
                entries(&piece[..], piece.len()).map(|entry| match entry {
                    Entry::Block(block) => (block, 0),
                    Entry::Page(page, offset) => (page, if piece[offset] == 0 { 255 } else { piece[offset] }),
                })
            })
            .collect();
        assert_eq!(pages, all.iter().filter(|(_, contents)| *contents != 0).count() as u64);
        all
    }

    const BASE: u64 = 0x4000_0000;

    #[test]
    fn only_changes_are_copied_again() {
        let mut sent = Sent::default();
        let all = [(BASE, 0), (BASE, 1), (BASE + 0x3000, 2), (BASE + BLOCK_SIZE, 0), (BASE + BLOCK_SIZE, 3)];
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &all), all);
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &all), []);
        // One changed, one became zero, one is new, and the other block was not accessed.
        let now = [(BASE, 0), (BASE + 0x1000, 4), (BASE + 0x3000, 5)];
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &now), [(BASE, 255), (BASE + 0x1000, 4), (BASE + 0x3000, 5)]);
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &now), []);
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &all[3..]), []);
        assert_eq!(reduce(&mut sent, (0, u64::MAX), &all[3..4]), [(BASE + BLOCK_SIZE, 255)]);
    }

    #[test]
    fn a_piece_speaks_for_what_it_covers_only() {
        let mut sent = Sent::default();
        let all = [(BASE, 0), (BASE, 1), (BASE + 0x3000, 2), (BASE + 0x5000, 3), (BASE + BLOCK_SIZE, 0), (BASE + BLOCK_SIZE, 4)];
        reduce(&mut sent, (0, u64::MAX), &all);
        assert_eq!(reduce(&mut sent, (BASE, BASE + 0x3000), &[(BASE, 0)]), [(BASE, 255)]);
        assert_eq!(reduce(&mut sent, (BASE + 0x3000, BASE + 0x5000), &[(BASE + 0x3000, 2)]), []);
        assert_eq!(reduce(&mut sent, (BASE + 0x4000, u64::MAX), &[]), [(BASE + 0x5000, 255)]);
        assert_eq!(reduce(&mut sent, (BASE + BLOCK_SIZE, u64::MAX), &[]), [], "it was skipped");
    }

    #[test]
    fn more_pages_than_a_piece_holds_become_several() {
        let mut sent = Sent::default();
        for first in [0, 8] {
            let part: Vec<_> = (first..first + 8).map(|page| (BASE + page * PAGE as u64, 1)).collect();
            let from = BASE + first * PAGE as u64;
            reduce(&mut sent, (from, from + 8 * PAGE as u64), &part);
        }
        let (pieces, pages) = sent.reduce((BASE, u64::MAX), &piece(&[(BASE, 0)]));
        assert_eq!((pieces.len(), pages), (2, 16));
    }
}
