//! The command queue, and an SMMU that does not execute commands any more.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Queue, command};

/// Registers of the queue.
pub trait QueueRegisters {
    /// Reads CMDQ_PROD.
    fn producer(&self) -> u32;

    /// Writes CMDQ_PROD, once earlier stores are visible to the SMMU.
    fn submit(&self, producer: u32);

    /// Reads CMDQ_CONS.
    fn consumer(&self) -> u32;
}

/// Maximum number of polls for a few commands: about a second on hardware.
pub const PATIENCE: u32 = 10_000_000;

/// CMDQ_CONS.ERR.
const ERROR: u32 = 0x7f << 24;

/// The command queue of an SMMU, which fails once and for all.
#[derive(Debug)]
pub struct CommandQueue<'m> {
    entries: &'m [[AtomicU64; 2]],
    indexes: Queue,
    failure: Option<&'static str>,
}

impl<'m> CommandQueue<'m> {
    /// An empty queue in memory that the SMMU reads, with as many entries as `indexes` has.
    pub const fn new(entries: &'m [[AtomicU64; 2]], indexes: Queue) -> Self {
        Self { entries, indexes, failure: None }
    }

    /// Executes commands and a CMD_SYNC, fewer than the queue holds, and waits for their completion.
    ///
    /// # Errors
    /// The SMMU does not execute them, now or earlier. Only the first failure takes the time of [`PATIENCE`].
    pub fn execute(&mut self, registers: &impl QueueRegisters, commands: &[[u64; 2]]) -> Result<(), &'static str> {
        if let Some(why) = self.failure {
            return Err(why);
        }
        let mut producer = registers.producer();
        for command in commands.iter().chain([&command::sync()]) {
            for (word, value) in self.entries[self.indexes.slot(producer)].iter().zip(command) {
                word.store(*value, Ordering::Relaxed);
            }
            producer = self.indexes.next(producer);
        }
        registers.submit(producer);
        let result = self.complete(registers, producer);
        self.failure = result.err();
        result
    }

    fn complete(&self, registers: &impl QueueRegisters, producer: u32) -> Result<(), &'static str> {
        for _ in 0..PATIENCE {
            let consumer = registers.consumer();
            if consumer & ERROR != 0 {
                return Err("the SMMU refuses a command");
            }
            if self.indexes.is_empty(producer, consumer) {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err("the SMMU does not answer")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::vec::Vec;

    use super::*;

    const INDEXES: Queue = Queue { log2: 2 };

    /// An SMMU that executes this many commands.
    struct Fake<'m> {
        entries: &'m [[AtomicU64; 2]],
        left: Cell<u32>,
        error: u32,
        producer: Cell<u32>,
        consumer: Cell<u32>,
        polls: Cell<u32>,
        executed: RefCell<Vec<[u64; 2]>>,
    }

    impl<'m> Fake<'m> {
        fn new(entries: &'m [[AtomicU64; 2]], left: u32, error: u32) -> Self {
            let [producer, consumer, polls] = [0; 3].map(Cell::new);
            Self { entries, left: Cell::new(left), error, producer, consumer, polls, executed: RefCell::default() }
        }
    }

    impl QueueRegisters for Fake<'_> {
        fn producer(&self) -> u32 {
            self.producer.get()
        }

        fn submit(&self, producer: u32) {
            self.producer.set(producer);
        }

        /// Executes a command for each poll.
        fn consumer(&self) -> u32 {
            self.polls.set(self.polls.get() + 1);
            if self.left.get() == 0 {
                return self.consumer.get() | self.error;
            }
            if self.consumer.get() != self.producer.get() {
                self.left.set(self.left.get() - 1);
                let entry = &self.entries[INDEXES.slot(self.consumer.get())];
                self.executed.borrow_mut().push(core::array::from_fn(|word| entry[word].load(Ordering::Relaxed)));
                self.consumer.set(INDEXES.next(self.consumer.get()));
            }
            self.consumer.get()
        }
    }

    fn entries() -> [[AtomicU64; 2]; 4] {
        [const { [const { AtomicU64::new(0) }; 2] }; 4]
    }

    #[test]
    fn commands_are_executed_in_order_around_the_end() {
        let entries = entries();
        let (smmu, mut queue) = (Fake::new(&entries, u32::MAX, 0), CommandQueue::new(&entries, INDEXES));
        let commands = [command::invalidate_stream(3), command::invalidate_vmid(4)];
        for _ in 0..3 {
            assert_eq!(queue.execute(&smmu, &commands), Ok(()));
        }
        assert_eq!(*smmu.executed.borrow(), [commands[0], commands[1], command::sync()].repeat(3));
    }

    #[test]
    fn a_silent_smmu_is_waited_for_once() {
        let entries = entries();
        let (smmu, mut queue) = (Fake::new(&entries, 1, 0), CommandQueue::new(&entries, INDEXES));
        assert_eq!(queue.execute(&smmu, &[command::invalidate_vmid(4)]), Err("the SMMU does not answer"));
        let polls = smmu.polls.get();
        assert_eq!(polls, PATIENCE);
        // It could answer again, but has missed an invalidation.
        smmu.left.set(u32::MAX);
        assert_eq!(queue.execute(&smmu, &[]), Err("the SMMU does not answer"));
        assert_eq!(smmu.polls.get(), polls);
    }

    #[test]
    fn a_refused_command_is_not_waited_for() {
        let entries = entries();
        let (smmu, mut queue) = (Fake::new(&entries, 0, 1 << 24), CommandQueue::new(&entries, INDEXES));
        assert_eq!(queue.execute(&smmu, &[]), Err("the SMMU refuses a command"));
        assert_eq!(smmu.polls.get(), 1);
    }
}
