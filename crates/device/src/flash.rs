//! NOR flash with Intel's command set (JEDEC JEP137, command set 0001h; "Common Flash Memory Interface", JESD68): the variable store of
//! UEFI firmware.
//!
//! Two 16-bit chips are side by side on a 32-bit bus, as on QEMU's `virt`. Commands and status are duplicated in both halves of a word.
//! Whether a store is a command or data depends on the stores before it. The caller owns the contents: while [`Flash::is_array`] is true,
//! loads need no model, and the guest may have the contents mapped for reading.
//!
//! Programming clears bits, erasing a block sets all of its bits. Each access during an erase erases a bounded number of words; the chips
//! are busy until the erase completes. Not modelled: the CFI query table, block locks (all blocks are unlocked), suspended operations.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

/// Bytes of an erase block, of both chips together.
pub const BLOCK_SIZE: u64 = 256 << 10;

/// Maximum number of words that one access erases.
const ERASED_AT_ONCE: usize = 4096;

/// Words of the write buffer: Intel's StrataFlash (P30) has 512 bytes a chip.
const BUFFER_WORDS: u32 = 256;

/// Bits of the status register. A wrong command sequence sets both error bits.
const READY: u32 = 1 << 7;
const ERASE_ERROR: u32 = 1 << 5;
const PROGRAM_ERROR: u32 = 1 << 4;
const SEQUENCE_ERROR: u32 = ERASE_ERROR | PROGRAM_ERROR;

/// Codes that Read Device Identifier returns: manufacturer (Intel) and device (P30, 256 Mbit).
const MANUFACTURER: u32 = 0x89;
const DEVICE: u32 = 0x891c;

/// Meaning of the next store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A command.
    Command,
    /// The data of a word.
    Word,
    /// The number of words that follow, less one.
    Count,
    /// Data for the buffer, for this many further words.
    Buffered(u32),
    /// The confirmation of an erasure.
    Erase,
    /// The confirmation of a buffered program.
    Buffer,
    /// The second cycle of a lock command: lock, unlock or lock down.
    Lock,
}

/// The values that loads return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loads {
    Array,
    Status,
    Identifier,
}

/// The state of the chips.
#[derive(Clone, Debug)]
pub struct Flash {
    loads: Loads,
    next: Next,
    /// Errors, until they are cleared.
    errors: u32,
    /// Words that are yet to be erased.
    erasing: Range<usize>,
}

impl Default for Flash {
    fn default() -> Self {
        Self::new()
    }
}

impl Flash {
    /// Creates flash in its reset state.
    pub const fn new() -> Self {
        Self { loads: Loads::Array, next: Next::Command, errors: 0, erasing: 0..0 }
    }

    /// Whether loads read the array's contents.
    pub fn is_array(&self) -> bool {
        self.loads == Loads::Array && self.next == Next::Command && self.erasing.is_empty()
    }

    /// Loads 1, 2, 4 or 8 bytes at `offset`, a multiple of the size. Returns the value, and the range of
    /// `memory`, in bytes, that was erased.
    pub fn read(&mut self, memory: &[AtomicU32], offset: u64, bytes: u64) -> (u64, Range<u64>) {
        let word = |at: u64| -> u32 {
            match self.loads {
                _ if self.next != Next::Command || !self.erasing.is_empty() => self.status(),
                Loads::Array => memory.get((at / 4) as usize).map_or(u32::MAX, |word| word.load(Ordering::Relaxed)),
                Loads::Status => self.status(),
                Loads::Identifier => match at % BLOCK_SIZE / 4 {
                    0 => both(MANUFACTURER),
                    1 => both(DEVICE),
                    // Lock status, among others: not locked.
                    _ => 0,
                },
            }
        };
        let first = offset & !3;
        let value = u64::from(word(first)) | u64::from(word(first + 4)) << 32;
        let value = value >> (offset % 4 * 8);
        let value = if bytes >= 8 { value } else { value & ((1 << (bytes * 8)) - 1) };
        (value, self.erase_some(memory))
    }

    /// Stores a word of 4 bytes at `offset`, a multiple of 4. Stores of other sizes have no effect on these chips: callers drop them.
    /// Returns the range of `memory`, in bytes, that changed.
    pub fn write(&mut self, memory: &[AtomicU32], offset: u64, value: u32) -> Range<u64> {
        let index = (offset / 4) as usize;
        let command = value & 0xff;
        if !self.erasing.is_empty() {
            // The chips are busy, and ignore commands.
            return self.erase_some(memory);
        }
        let next = core::mem::replace(&mut self.next, Next::Command);
        match next {
            Next::Command => self.command(command),
            Next::Word => return program(memory, index, value),
            Next::Count if value & 0xffff < BUFFER_WORDS => self.next = Next::Buffered((value & 0xffff) + 1),
            Next::Buffered(left) => {
                // Programmed immediately: the confirmation can only fail a sequence that no driver uses.
                self.next = if left > 1 { Next::Buffered(left - 1) } else { Next::Buffer };
                return program(memory, index, value);
            }
            Next::Buffer if command == 0xd0 => {}
            Next::Erase if command == 0xd0 => {
                let words = (BLOCK_SIZE / 4) as usize;
                let start = index / words * words;
                self.erasing = start.min(memory.len())..(start + words).min(memory.len());
                return self.erase_some(memory);
            }
            Next::Lock if matches!(command, 0x01 | 0xd0 | 0x2f) => {}
            Next::Count | Next::Buffer | Next::Erase | Next::Lock => self.errors |= SEQUENCE_ERROR,
        }
        0..0
    }

    fn command(&mut self, command: u32) {
        let (loads, next) = match command {
            0xff => (Loads::Array, Next::Command),
            0x90 => (Loads::Identifier, Next::Command),
            0x10 | 0x40 => (Loads::Status, Next::Word),
            0x20 => (Loads::Status, Next::Erase),
            0xe8 => (Loads::Status, Next::Count),
            0x60 => (Loads::Status, Next::Lock),
            0x50 => {
                self.errors = 0;
                (Loads::Status, Next::Command)
            }
            // Read Status Register (70h), and commands that are not modelled.
            _ => (Loads::Status, Next::Command),
        };
        (self.loads, self.next) = (loads, next);
    }

    fn status(&self) -> u32 {
        both(self.errors | if self.erasing.is_empty() { READY } else { 0 })
    }

    /// Continues an erase, if one is in progress. Returns the range of `memory`, in bytes, that changed.
    fn erase_some(&mut self, memory: &[AtomicU32]) -> Range<u64> {
        let start = self.erasing.start;
        let end = self.erasing.end.min(start + ERASED_AT_ONCE);
        for word in memory.get(start..end).unwrap_or_default() {
            word.store(u32::MAX, Ordering::Relaxed);
        }
        self.erasing.start = end;
        start as u64 * 4..end as u64 * 4
    }
}

/// Returns the word in which both chips have the same 16-bit value.
fn both(value: u32) -> u32 {
    value << 16 | value
}

/// Programs a word: clears the bits that are 0 in `value`. Returns the word's range of `memory`, in bytes.
fn program(memory: &[AtomicU32], index: usize, value: u32) -> Range<u64> {
    if let Some(word) = memory.get(index) {
        word.fetch_and(value, Ordering::Relaxed);
    }
    index as u64 * 4..index as u64 * 4 + 4
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const BLOCK_WORDS: usize = (BLOCK_SIZE / 4) as usize;

    fn memory(value: u32) -> Vec<AtomicU32> {
        (0..2 * BLOCK_WORDS).map(|_| AtomicU32::new(value)).collect()
    }

    /// A command in both halves.
    fn command(flash: &mut Flash, memory: &[AtomicU32], offset: u64, command: u32) -> Range<u64> {
        flash.write(memory, offset, both(command))
    }

    fn read(flash: &mut Flash, memory: &[AtomicU32], offset: u64, bytes: u64) -> u64 {
        flash.read(memory, offset, bytes).0
    }

    #[test]
    fn a_word_is_programmed_by_clearing_bits() {
        let (mut flash, memory) = (Flash::new(), memory(u32::MAX));
        assert!(flash.is_array());
        for (value, then) in [(0xffff_0ff0, 0xffff_0ff0), (0x0fff_ffff, 0x0fff_0ff0)] {
            command(&mut flash, &memory, 8, 0x40);
            assert!(!flash.is_array());
            assert_eq!(flash.write(&memory, 8, value), 8..12);
            assert_eq!(read(&mut flash, &memory, 0, 4), both(READY).into());
            command(&mut flash, &memory, 0, 0xff);
            assert!(flash.is_array());
            assert_eq!(read(&mut flash, &memory, 8, 4), then);
        }
        assert_eq!(read(&mut flash, &memory, 8, 8), 0xffff_ffff_0fff_0ff0);
        assert_eq!((read(&mut flash, &memory, 10, 2), read(&mut flash, &memory, 9, 1)), (0x0fff, 0x0f));
    }

    #[test]
    fn a_block_is_erased_in_steps_and_is_not_ready_meanwhile() {
        let (mut flash, memory) = (Flash::new(), memory(0));
        command(&mut flash, &memory, BLOCK_SIZE, 0x20);
        let mut end = command(&mut flash, &memory, BLOCK_SIZE + 64, 0xd0).end;
        // Other commands have no effect, but time passes.
        end = command(&mut flash, &memory, end, 0xff).end;
        let mut polls = 0;
        loop {
            assert!(!flash.is_array());
            let (status, changed) = flash.read(&memory, BLOCK_SIZE, 4);
            if status & u64::from(READY) != 0 {
                break;
            }
            assert_eq!(changed.start, end);
            end = changed.end;
            polls += 1;
        }
        assert_eq!(end, 2 * BLOCK_SIZE);
        assert!(polls > 1 && polls <= BLOCK_WORDS / ERASED_AT_ONCE, "{polls}");
        command(&mut flash, &memory, 0, 0xff);
        let values = |range: Range<usize>| memory[range].iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert!(values(0..BLOCK_WORDS).iter().all(|&word| word == 0));
        assert!(values(BLOCK_WORDS..2 * BLOCK_WORDS).iter().all(|&word| word == u32::MAX));
    }

    #[test]
    fn a_buffer_takes_as_many_words_as_were_told() {
        let (mut flash, memory) = (Flash::new(), memory(u32::MAX));
        command(&mut flash, &memory, 0, 0xe8);
        assert_eq!(read(&mut flash, &memory, 0, 4), both(READY).into());
        flash.write(&memory, 0, both(2));
        for word in 0..3 {
            flash.write(&memory, 16 + 4 * word, word as u32);
        }
        command(&mut flash, &memory, 0, 0xd0);
        command(&mut flash, &memory, 0, 0xff);
        assert_eq!([16, 20, 24, 28].map(|at| read(&mut flash, &memory, at, 4)), [0, 1, 2, 0xffff_ffff]);
    }

    #[test]
    fn wrong_sequences_are_errors_until_they_are_cleared() {
        let (mut flash, memory) = (Flash::new(), memory(0));
        let sequences: [&[u32]; 4] = [&[0x20, 0xff], &[0xe8, BUFFER_WORDS], &[0xe8, 0, 5, 0x40], &[0x60, 0x55]];
        for sequence in sequences {
            for &value in sequence {
                command(&mut flash, &memory, 0, value);
            }
            assert_eq!(read(&mut flash, &memory, 0, 4), both(READY | SEQUENCE_ERROR).into(), "{sequence:x?}");
            command(&mut flash, &memory, 0, 0x50);
            assert_eq!(read(&mut flash, &memory, 0, 4), both(READY).into());
        }
        assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn the_end_of_memory_is_no_panic() {
        let (mut flash, memory) = (Flash::new(), memory(0));
        let end = 2 * BLOCK_SIZE;
        for value in [0x40, 0, 0x20, 0xd0, 0x90, 0xff] {
            command(&mut flash, &memory, end, value);
            read(&mut flash, &memory, end - 4, 8);
        }
        assert_eq!(read(&mut flash, &memory, end - 4, 8), 0xffff_ffff_0000_0000);
    }
}
