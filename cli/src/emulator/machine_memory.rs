//! RAM of an emulated machine that this process accesses, too.

use std::io;

use super::process_memory::ProcessMemory;
use super::shared::SharedMemory;

/// Access to the window of a machine.
#[derive(Debug)]
pub enum MachineMemory {
    /// The RAM is a file of this process.
    Shared(SharedMemory),
    /// It is in the emulator's process.
    Process(ProcessMemory),
}

impl MachineMemory {
    /// The mark of the next window, for [`stile_wire::Command::OpenWindow`].
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn choose_mark(&mut self) -> io::Result<u64> {
        match self {
            Self::Shared(_) => Ok(0),
            Self::Process(memory) => memory.choose_mark(),
        }
    }

    /// Stile has opened the window.
    ///
    /// # Errors
    /// It is not in the machine's memory.
    pub fn opened(&mut self) -> io::Result<()> {
        match self {
            Self::Shared(_) => Ok(()),
            Self::Process(memory) => memory.find(),
        }
    }
}
