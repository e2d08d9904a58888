//! The command buffer, which fails for good once the IOMMU stops executing commands.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{ENTRIES, command};

/// Registers of the buffer.
pub trait CommandRegisters {
    /// Writes the tail, an offset in bytes, once earlier stores are visible to the IOMMU.
    fn submit(&self, tail: u64);

    /// Whether the IOMMU executes commands: it stops at one that it refuses ([`COMMANDS_RUN`](crate::register::status::COMMANDS_RUN)).
    fn is_running(&self) -> bool;
}

/// Maximum number of polls for the completion of a batch of commands: about a second on hardware.
pub const PATIENCE: u32 = 10_000_000;

/// Number of polls of memory between two reads of the status register, which take longer.
const POLLS: u32 = 1024;

/// The command buffer of an IOMMU. Its first failure is final.
#[derive(Debug)]
pub struct CommandBuffer<'m> {
    entries: &'m [[AtomicU64; 2]; ENTRIES],
    /// Number of the last completed batch of commands, written by the IOMMU.
    completed: &'m AtomicU64,
    /// Physical address of `completed`.
    completed_at: u64,
    /// Number of the last batch.
    batch: u64,
    /// Index of the next entry.
    next: usize,
    failure: Option<&'static str>,
}

impl<'m> CommandBuffer<'m> {
    /// An empty buffer. The IOMMU reads `entries`, and writes `completed`, which is 0 and has the physical address `completed_at`.
    pub const fn new(entries: &'m [[AtomicU64; 2]; ENTRIES], completed: &'m AtomicU64, completed_at: u64) -> Self {
        Self { entries, completed, completed_at, batch: 0, next: 0, failure: None }
    }

    /// Executes commands, fewer than [`ENTRIES`] - 1, and waits for their completion.
    ///
    /// # Errors
    /// The IOMMU refuses a command or does not answer, or did so earlier. Only the first failure takes the time of [`PATIENCE`].
    pub fn execute(&mut self, registers: &impl CommandRegisters, commands: &[[u64; 2]]) -> Result<(), &'static str> {
        if let Some(why) = self.failure {
            return Err(why);
        }
        self.batch += 1;
        for command in commands.iter().chain([&command::completion_wait(self.completed_at, self.batch)]) {
            for (word, value) in self.entries[self.next].iter().zip(command) {
                word.store(*value, Ordering::Relaxed);
            }
            self.next = (self.next + 1) % ENTRIES;
        }
        registers.submit(self.next as u64 * 16);
        let result = self.complete(registers);
        self.failure = result.err();
        result
    }

    fn complete(&self, registers: &impl CommandRegisters) -> Result<(), &'static str> {
        for poll in 0..PATIENCE {
            if self.completed.load(Ordering::Acquire) == self.batch {
                return Ok(());
            }
            if poll % POLLS == POLLS - 1 && !registers.is_running() {
                return Err("the IOMMU refuses a command");
            }
            core::hint::spin_loop();
        }
        Err("the IOMMU does not answer")
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::cell::{Cell, RefCell};
    use std::vec::Vec;

    use super::*;

    const AT: u64 = 0x1230;

    struct Memory {
        entries: [[AtomicU64; 2]; ENTRIES],
        completed: AtomicU64,
    }

    fn memory() -> Box<Memory> {
        Box::new(Memory { entries: [const { [const { AtomicU64::new(0) }; 2] }; ENTRIES], completed: AtomicU64::new(0) })
    }

    /// An IOMMU that executes a number of commands when the tail is written.
    struct Fake<'m> {
        memory: &'m Memory,
        left: Cell<u32>,
        refuses: bool,
        head: Cell<usize>,
        asked: Cell<u32>,
        executed: RefCell<Vec<[u64; 2]>>,
    }

    impl<'m> Fake<'m> {
        fn new(memory: &'m Memory, left: u32, refuses: bool) -> Self {
            Fake { memory, left: Cell::new(left), refuses, head: Cell::new(0), asked: Cell::new(0), executed: RefCell::default() }
        }
    }

    impl CommandRegisters for Fake<'_> {
        fn submit(&self, tail: u64) {
            assert!(tail.is_multiple_of(16));
            while self.head.get() != tail as usize / 16 && self.left.get() != 0 {
                self.left.set(self.left.get() - 1);
                let words = self.memory.entries[self.head.get()].each_ref().map(|word| word.load(Ordering::Relaxed));
                self.head.set((self.head.get() + 1) % ENTRIES);
                if words[0] >> 60 == 1 {
                    assert_eq!(words[0] & 0x000f_ffff_ffff_fff8, AT);
                    self.memory.completed.store(words[1], Ordering::Release);
                } else {
                    self.executed.borrow_mut().push(words);
                }
            }
        }

        fn is_running(&self) -> bool {
            self.asked.set(self.asked.get() + 1);
            !self.refuses
        }
    }

    #[test]
    fn commands_are_executed_in_order_around_the_end() {
        let memory = memory();
        let (iommu, mut buffer) = (Fake::new(&memory, u32::MAX, false), CommandBuffer::new(&memory.entries, &memory.completed, AT));
        let commands = [command::invalidate_device(3), command::invalidate_domain(4)];
        for _ in 0..ENTRIES {
            assert_eq!(buffer.execute(&iommu, &commands), Ok(()));
        }
        assert_eq!(*iommu.executed.borrow(), commands.repeat(ENTRIES));
        assert_eq!(iommu.asked.get(), 0, "the register is not read if the IOMMU answers");
    }

    #[test]
    fn a_silent_iommu_is_waited_for_once() {
        let memory = memory();
        let (iommu, mut buffer) = (Fake::new(&memory, 1, false), CommandBuffer::new(&memory.entries, &memory.completed, AT));
        assert_eq!(buffer.execute(&iommu, &[command::invalidate_domain(4)]), Err("the IOMMU does not answer"));
        let asked = iommu.asked.get();
        assert_eq!(asked, PATIENCE / POLLS);
        // It could answer again, but has missed an invalidation.
        iommu.left.set(u32::MAX);
        assert_eq!(buffer.execute(&iommu, &[]), Err("the IOMMU does not answer"));
        assert_eq!(iommu.asked.get(), asked);
    }

    #[test]
    fn a_refused_command_is_not_waited_for() {
        let memory = memory();
        let (iommu, mut buffer) = (Fake::new(&memory, 0, true), CommandBuffer::new(&memory.entries, &memory.completed, AT));
        assert_eq!(buffer.execute(&iommu, &[]), Err("the IOMMU refuses a command"));
        assert_eq!(iommu.asked.get(), 1);
    }
}
