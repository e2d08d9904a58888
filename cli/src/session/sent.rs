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
    /// Reduces a piece, which Stile saved, to what has changed. Returns pieces, and the number of their pages.
    pub fn reduce(&mut self, piece: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let mut to = Pieces::default();
        for entry in entries(piece, piece.len()) {
            let (page, contents) = match entry {
                Entry::Block(_) => continue,
                Entry::Page(page, offset) => (page, piece.get(offset..offset + PAGE)),
                Entry::Zero(page) => (page, None),
            };
            let block = page & !(BLOCK_SIZE - 1);
            if self.blocks.insert(block) {
                to.block(block);
            }
            let hash = contents.map(|contents| self.keys.hash_one(contents));
            let before = match hash {
                Some(hash) => self.pages.insert(page, hash),
                None => self.pages.remove(&page),
            };
            if before != hash {
                to.page(page, contents.unwrap_or(&[0; PAGE]));
            }
        }
        to.finish()
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

    /// The piece that Stile saves with these pages, which have the contents of their number.
    fn saved(of: &[(u64, u8)]) -> Vec<u8> {
        let (mut builder, mut piece) = (Builder::new(), vec![0; WINDOW]);
        for &(page, contents) in of {
            if contents == 0 {
                builder.zero(&mut piece[..], page);
            } else {
                let offset = builder.page(&mut piece[..], page);
                piece[offset..offset + PAGE].fill(contents);
            }
        }
        let length = builder.finish(&mut piece[..]);
        piece.truncate(length);
        piece
    }

    /// Entries written of it: addresses, with the page's contents, or none for the beginning of a block.
    fn reduce(sent: &mut Sent, of: &[(u64, u8)]) -> Vec<(u64, Option<u8>)> {
        let (pieces, pages) = sent.reduce(&saved(of));
        let all: Vec<_> = pieces
            .iter()
            .flat_map(|piece| {
                entries(&piece[..], piece.len()).map(|entry| match entry {
                    Entry::Block(block) => (block, None),
                    Entry::Page(page, offset) => (page, Some(piece[offset])),
                    Entry::Zero(page) => panic!("{page:#x} without contents, which files don't have"),
                })
            })
            .collect();
        assert_eq!(pages, all.iter().filter(|(_, contents)| contents.is_some()).count() as u64);
        all
    }

    const BASE: u64 = 0x4000_0000;
    const OTHER: u64 = BASE + BLOCK_SIZE;

    #[test]
    fn only_changes_are_copied_again() {
        let mut sent = Sent::default();
        let all = [(BASE, 1), (BASE + 0x1000, 0), (BASE + 0x3000, 2), (OTHER + 0x1000, 0), (OTHER + 0x2000, 3)];
        let first = [(BASE, None), (BASE, Some(1)), (BASE + 0x3000, Some(2)), (OTHER, None), (OTHER + 0x2000, Some(3))];
        assert_eq!(reduce(&mut sent, &all), first);
        assert_eq!(reduce(&mut sent, &all), []);
        // One is as it was, one has become zero, one has changed, and one is new.
        let now = [(BASE, 1), (BASE + 0x1000, 4), (BASE + 0x3000, 0), (OTHER + 0x2000, 5)];
        let changed = [(BASE + 0x1000, Some(4)), (BASE + 0x3000, Some(0)), (OTHER + 0x2000, Some(5))];
        assert_eq!(reduce(&mut sent, &now), changed);
        assert_eq!(reduce(&mut sent, &now), []);
        // Others are not spoken of.
        assert_eq!(reduce(&mut sent, &[(OTHER + 0x2000, 0)]), [(OTHER + 0x2000, Some(0))]);
    }

    #[test]
    fn a_block_of_zeros_begins_too() {
        let mut sent = Sent::default();
        assert_eq!(reduce(&mut sent, &[(BASE, 0), (BASE + 0x1000, 0)]), [(BASE, None)]);
        assert_eq!(reduce(&mut sent, &[(BASE, 0)]), []);
    }

    #[test]
    fn more_pages_than_a_piece_holds_become_several() {
        let mut sent = Sent::default();
        for first in [0, 8] {
            let part: Vec<_> = (first..first + 8).map(|page| (BASE + page * PAGE as u64, 1)).collect();
            reduce(&mut sent, &part);
        }
        let zeros: Vec<_> = (0..512).map(|page| (BASE + page * PAGE as u64, 0)).take(500).collect();
        let (pieces, pages) = sent.reduce(&saved(&zeros));
        assert_eq!((pieces.len(), pages), (2, 16));
    }
}
