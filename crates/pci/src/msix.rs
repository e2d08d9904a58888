//! MSI-X: the capability, and the table as the guest sees it (PCI Local Bus Specification, 6.8.2).

use crate::bar::BARS;
use crate::capability::Capability;
use crate::{ConfigSpace, PAGE};

/// The most vectors that a guest sees of a function.
pub const MAX_VECTORS: usize = 32;

/// Bytes of a vector in the table.
const ENTRY: u64 = 16;

/// Places of a function's MSI-X structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Offset of the capability.
    pub capability: u8,
    /// Vectors of the physical table: 1 to 2048.
    pub physical_vectors: u16,
    /// The BAR that the table is in.
    pub bar: usize,
    /// Offset of the table in that BAR.
    pub offset: u64,
}

impl Msix {
    /// Reads the capability. `None` if it names no BAR.
    pub fn new(space: &impl ConfigSpace, capability: Capability) -> Option<Msix> {
        let place = space.read(capability.offset.checked_add(4)?);
        let bar = (place & 7) as usize;
        let physical_vectors = (capability.header >> 16) as u16 & 0x7ff;
        let msix = Msix { capability: capability.offset, physical_vectors: physical_vectors + 1, bar, offset: u64::from(place & !7) };
        (bar < BARS).then_some(msix)
    }

    /// Vectors that the guest sees.
    pub fn vectors(&self) -> usize {
        usize::from(self.physical_vectors).min(MAX_VECTORS)
    }

    /// Whether an offset in its BAR is in the physical table.
    pub fn contains(&self, offset: u64) -> bool {
        (self.offset..self.offset + u64::from(self.physical_vectors) * ENTRY).contains(&offset)
    }

    /// The part of the BAR that holds the table, in whole pages: not to be mapped.
    pub fn pages(&self) -> core::ops::Range<u64> {
        let end = self.offset + u64::from(self.physical_vectors) * ENTRY;
        self.offset & !(PAGE - 1)..end.next_multiple_of(PAGE)
    }
}

/// A vector of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Address of its message.
    pub address: u64,
    /// The message.
    pub data: u32,
    /// Whether it is masked.
    pub masked: bool,
}

/// The table as the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    words: [[u32; 4]; MAX_VECTORS],
    vectors: usize,
}

impl Table {
    /// A table after reset: all vectors masked.
    pub const fn new(vectors: usize) -> Table {
        Table { words: [[0, 0, 0, 1]; MAX_VECTORS], vectors: if vectors < MAX_VECTORS { vectors } else { MAX_VECTORS } }
    }

    /// The number of vectors.
    pub const fn vectors(&self) -> usize {
        self.vectors
    }

    /// Returns a vector.
    pub fn vector(&self, number: usize) -> Option<Vector> {
        let words = self.words[..self.vectors].get(number)?;
        let address = u64::from(words[1]) << 32 | u64::from(words[0] & !3);
        Some(Vector { address, data: words[2], masked: words[3] & 1 != 0 })
    }

    /// Reads `bytes` bytes (4 or 8, naturally aligned) at an offset in the table. Vectors that are not shown
    /// and other accesses, which are undefined, read as zero.
    pub fn read(&self, offset: u64, bytes: u64) -> u64 {
        match bytes {
            4 if offset.is_multiple_of(4) => self.word(offset).copied().unwrap_or(0).into(),
            8 if offset.is_multiple_of(8) => self.read(offset, 4) | self.read(offset + 4, 4) << 32,
            _ => 0,
        }
    }

    /// Writes to the table, as [`Table::read`]. Returns the number of the vector that may have changed.
    pub fn write(&mut self, offset: u64, bytes: u64, value: u64) -> Option<usize> {
        match bytes {
            4 if offset.is_multiple_of(4) => {
                let word = self.word_mut(offset)?;
                // Of the vector control, only the mask bit is not reserved.
                *word = if offset % ENTRY == 12 { value as u32 & 1 } else { value as u32 };
                Some((offset / ENTRY) as usize)
            }
            8 if offset.is_multiple_of(8) => {
                self.write(offset, 4, value)?;
                self.write(offset + 4, 4, value >> 32)
            }
            _ => None,
        }
    }

    fn word(&self, offset: u64) -> Option<&u32> {
        self.words[..self.vectors].get(usize::try_from(offset / ENTRY).ok()?)?.get((offset % ENTRY / 4) as usize)
    }

    fn word_mut(&mut self, offset: u64) -> Option<&mut u32> {
        self.words[..self.vectors].get_mut(usize::try_from(offset / ENTRY).ok()?)?.get_mut((offset % ENTRY / 4) as usize)
    }
}
