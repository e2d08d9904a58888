//! Lists of tables outside the tree: reserved for use, or waiting to be freed.

use super::{Error, TableMemory, read};

/// A list of tables, linked through their first entries.
///
/// A link is a multiple of 4 KiB, and so an invalid descriptor: a table can be on a list while a stale walk
/// still reaches it.
#[derive(Debug, Default)]
pub(super) struct Chain {
    head: u64,
    length: usize,
}

impl Chain {
    /// Takes `count` zeroed tables from `memory`, or none at all.
    pub fn set_aside<M: TableMemory>(memory: &mut M, count: usize) -> Result<Self, Error> {
        let mut chain = Self::default();
        for _ in 0..count {
            match memory.allocate() {
                Some(table) => chain.push(memory, table),
                None => {
                    chain.free(memory);
                    return Err(Error::OutOfMemory);
                }
            }
        }
        Ok(chain)
    }

    /// Adds a table.
    pub fn push<M: TableMemory>(&mut self, memory: &mut M, table: u64) {
        memory.write(table, 0, self.head);
        self.head = table;
        self.length += 1;
    }

    /// Takes a table off the list and clears its link.
    pub fn pop<M: TableMemory>(&mut self, memory: &mut M) -> Option<u64> {
        self.length = self.length.checked_sub(1)?;
        let table = self.head;
        self.head = read(memory, table, 0);
        memory.write(table, 0, 0);
        Some(table)
    }

    /// Takes a table reserved by [`set_aside`](Chain::set_aside).
    ///
    /// # Panics
    /// If more tables are taken than were reserved: an operation's plan and its execution disagree.
    pub fn take<M: TableMemory>(&mut self, memory: &mut M) -> u64 {
        match self.pop(memory) {
            Some(table) => table,
            None => unreachable!("an operation needs more tables than it reserved"),
        }
    }

    /// Gives all tables back to `memory`.
    pub fn free<M: TableMemory>(mut self, memory: &mut M) {
        while let Some(table) = self.pop(memory) {
            memory.free(table);
        }
    }
}
