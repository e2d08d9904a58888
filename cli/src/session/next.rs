//! The next step of a snapshot's transfer, and access to the memory shared with Stile.

use std::io;

use stile_snapshot::pages::WINDOW;
use stile_wire::Command;

use crate::control::protocol::Reply;
use crate::emulator::MachineMemory;

/// Next step after an answer.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a command is sent where it is decided")]
pub enum Next {
    /// This command.
    Send(Command),
    /// A step that the client asked for is complete: this is its answer.
    Wait(Reply),
    /// The transfer is complete, with this answer.
    Complete(Reply),
}

/// Access of a snapshot to the memory shared with Stile.
pub trait Window {
    /// Reads the first bytes of the window at a physical address.
    ///
    /// # Errors
    /// It is not in memory.
    fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()>;

    /// Returns the first `length` bytes, at most the whole window.
    ///
    /// # Errors
    /// See [`Window::read`].
    fn part(&self, address: u64, length: u32) -> io::Result<Vec<u8>> {
        let mut part = vec![0; (length as usize).min(WINDOW)];
        self.read(address, &mut part)?;
        Ok(part)
    }

    /// Writes them.
    ///
    /// # Errors
    /// See [`Window::read`].
    fn write(&self, address: u64, from: &[u8]) -> io::Result<()>;
}

impl Window for MachineMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Shared(memory) => memory.read(address, to),
            Self::Process(memory) => memory.read(to),
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> io::Result<()> {
        match self {
            Self::Shared(memory) => memory.write(address, from),
            Self::Process(memory) => memory.write(from),
        }
    }
}
