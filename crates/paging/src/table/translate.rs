//! Table walk in software, with the hardware's results.

use super::format::{Attributes, Entry, Format, Layout};
use super::{Level, PageTable, TableRead};

/// The result of a successful walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation<P> {
    /// The physical address, with the low bits of the input address.
    pub output: u64,
    /// The level of the page or block; [`Level::size`] is its size.
    pub level: Level,
    /// Type of memory and permissions.
    pub attributes: Attributes<P>,
    /// The leaf descriptor.
    pub descriptor: u64,
}

/// Reason for a walk's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultReason<E> {
    /// Translation fault: the entry is invalid, or the address is too large.
    Translation,
    /// Access flag fault: the entry's access flag is 0.
    AccessFlag,
    /// Address size fault: an address in an entry exceeds the physical address size.
    AddressSize,
    /// A table could not be read (a synchronous external abort on a table walk).
    Read(E),
}

/// A failed walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault<E> {
    /// The level of the faulting entry.
    pub level: Level,
    /// The reason of the fault.
    pub reason: FaultReason<E>,
}

impl<F: Format> PageTable<F> {
    /// Whether a block maps `address`, so that a change of one of its pages splits it.
    pub fn has_block<R: TableRead>(&self, memory: &R, address: u64) -> bool {
        self.translate(memory, address).is_ok_and(|found| found.level != Level::L3)
    }

    /// Translates `address` (any alignment) like a hardware table walk.
    ///
    /// Safe on guest-made tables: every descriptor has a defined result, and the walk takes at most four
    /// steps. Permissions are reported, not checked.
    ///
    /// # Errors
    /// The fault that the hardware would report.
    pub fn translate<R: TableRead>(&self, memory: &R, address: u64) -> Result<Translation<F::Permissions>, Fault<R::Error>> {
        let mut level = self.geometry.start();
        let fault = |level, reason| Err(Fault { level, reason });
        if address >> self.geometry.input_bits() != 0 {
            return fault(Level::L0, FaultReason::Translation);
        }
        let limit = self.geometry.pa_range().limit();
        let mut table = self.root;
        let mut index = (address >> level.shift()) as usize;
        loop {
            let descriptor = match memory.read(table, index) {
                Ok(descriptor) => descriptor,
                Err(error) => return fault(level, FaultReason::Read(error)),
            };
            match (F::Layout::entry(level, descriptor), level.next()) {
                (Entry::Table(next), _) if next >= limit => {
                    return fault(level, FaultReason::AddressSize);
                }
                (Entry::Table(next), Some(below)) => {
                    table = next;
                    level = below;
                    index = (address >> level.shift()) as usize % super::ENTRIES;
                }
                (Entry::Leaf(output), _) if output >= limit => {
                    return fault(level, FaultReason::AddressSize);
                }
                (Entry::Leaf(_), _) if !self.format.is_accessed(descriptor) => {
                    return fault(level, FaultReason::AccessFlag);
                }
                (Entry::Leaf(output), _) => {
                    return Ok(Translation {
                        output: output | (address & (level.size() - 1)),
                        level,
                        attributes: self.format.decode(descriptor),
                        descriptor,
                    });
                }
                (Entry::Invalid | Entry::Table(_), _) => {
                    return fault(level, FaultReason::Translation);
                }
            }
        }
    }
}
