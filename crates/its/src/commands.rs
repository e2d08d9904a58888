//! The command queue, and an ITS that does not execute commands any more.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{COMMAND_SIZE, Command};

/// Registers of the queue.
pub trait QueueRegisters {
    /// Reads GITS_CWRITER.
    fn writer(&self) -> u32;

    /// Writes GITS_CWRITER, once earlier stores are visible to the ITS.
    fn submit(&self, writer: u32);

    /// Reads GITS_CREADR.
    fn reader(&self) -> u32;
}

/// Maximum number of polls for a few commands: about a second on hardware.
pub const PATIENCE: u32 = 10_000_000;

/// Offset in GITS_CREADR, and its Stalled: the ITS stopped at a command with an error.
const OFFSET: u32 = 0xf_ffe0;
const STALLED: u32 = 1;

/// The command queue of an ITS, which fails once and for all.
#[derive(Debug)]
pub struct CommandQueue<'m> {
    words: &'m [AtomicU64],
    failure: Option<&'static str>,
}

impl<'m> CommandQueue<'m> {
    /// An empty queue in memory that the ITS reads: at least two commands, four words each.
    pub const fn new(words: &'m [AtomicU64]) -> Self {
        Self { words, failure: None }
    }

    /// Executes commands, fewer than the queue holds, and waits for their completion.
    ///
    /// # Errors
    /// The ITS does not execute them, now or earlier. Only the first failure takes the time of [`PATIENCE`].
    pub fn execute(&mut self, registers: &impl QueueRegisters, commands: &[Command]) -> Result<(), &'static str> {
        if let Some(why) = self.failure {
            return Err(why);
        }
        let count = self.words.len() / 4;
        let mut writer = registers.writer() as usize / COMMAND_SIZE % count;
        for command in commands {
            for (word, value) in self.words[writer * 4..].iter().zip(command) {
                word.store(*value, Ordering::Relaxed);
            }
            writer = (writer + 1) % count;
        }
        let writer = (writer * COMMAND_SIZE) as u32;
        registers.submit(writer);
        let result = complete(registers, writer);
        self.failure = result.err();
        result
    }
}

fn complete(registers: &impl QueueRegisters, writer: u32) -> Result<(), &'static str> {
    for _ in 0..PATIENCE {
        let reader = registers.reader();
        if reader & OFFSET == writer {
            return Ok(());
        }
        if reader & STALLED != 0 {
            return Err("the ITS refuses a command");
        }
        core::hint::spin_loop();
    }
    Err("the ITS does not answer")
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::vec::Vec;

    use super::*;

    /// An ITS that executes this many commands.
    struct Fake<'m> {
        words: &'m [AtomicU64],
        left: Cell<u32>,
        stalls: bool,
        writer: Cell<u32>,
        reader: Cell<u32>,
        polls: Cell<u32>,
        executed: RefCell<Vec<Command>>,
    }

    impl<'m> Fake<'m> {
        fn new(words: &'m [AtomicU64], left: u32, stalls: bool) -> Self {
            let [writer, reader, polls] = [0; 3].map(Cell::new);
            Self { words, left: Cell::new(left), stalls, writer, reader, polls, executed: RefCell::default() }
        }
    }

    impl QueueRegisters for Fake<'_> {
        fn writer(&self) -> u32 {
            self.writer.get()
        }

        fn submit(&self, writer: u32) {
            self.writer.set(writer);
        }

        /// Executes a command for each poll.
        fn reader(&self) -> u32 {
            self.polls.set(self.polls.get() + 1);
            if self.reader.get() != self.writer.get() && self.left.get() != 0 {
                self.left.set(self.left.get() - 1);
                let at = self.reader.get() as usize / 8;
                self.executed.borrow_mut().push(core::array::from_fn(|word| self.words[at + word].load(Ordering::Relaxed)));
                self.reader.set((self.reader.get() + COMMAND_SIZE as u32) % (8 * self.words.len() as u32));
            }
            self.reader.get() | u32::from(self.stalls && self.left.get() == 0)
        }
    }

    fn commands() -> [Command; 2] {
        [crate::move_event(1, 2, 3), crate::sync(1 << 16)]
    }

    #[test]
    fn commands_are_executed_in_order_around_the_end() {
        let words = [const { AtomicU64::new(0) }; 12];
        let (its, mut queue) = (Fake::new(&words, u32::MAX, false), CommandQueue::new(&words));
        for _ in 0..4 {
            assert_eq!(queue.execute(&its, &commands()), Ok(()));
        }
        assert_eq!(*its.executed.borrow(), commands().repeat(4));
    }

    #[test]
    fn a_silent_its_is_waited_for_once() {
        let words = [const { AtomicU64::new(0) }; 128];
        let (its, mut queue) = (Fake::new(&words, 3, false), CommandQueue::new(&words));
        assert_eq!(queue.execute(&its, &commands()), Ok(()));
        assert_eq!(queue.execute(&its, &commands()), Err("the ITS does not answer"));
        let polls = its.polls.get();
        assert!(polls <= PATIENCE + 2, "{polls}");
        // It could answer again, but has missed commands.
        its.left.set(u32::MAX);
        assert_eq!(queue.execute(&its, &commands()), Err("the ITS does not answer"));
        assert_eq!(its.polls.get(), polls);
    }

    #[test]
    fn a_stalled_its_is_not_waited_for() {
        let words = [const { AtomicU64::new(0) }; 128];
        let (its, mut queue) = (Fake::new(&words, 1, true), CommandQueue::new(&words));
        assert_eq!(queue.execute(&its, &commands()), Err("the ITS refuses a command"));
        assert_eq!(its.polls.get(), 1);
    }
}
