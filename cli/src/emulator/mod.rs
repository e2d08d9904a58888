//! The emulated machines: an Arm server (QEMU's `virt` board with EL2), a PC with VMX (Bochs), and one with AMD-V (QEMU).

pub mod amd;
pub mod bochs;
mod machine_memory;
mod models;
mod privileges;
mod process;
mod process_memory;
pub mod qemu;
mod qemu_features;
mod shared;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use anyhow::Result;

pub use amd::AmdPc;
pub use bochs::{Boot, Pc};
pub use machine_memory::MachineMemory;
pub use models::check_model;
pub use process::{Emulator, Pipes};
pub use process_memory::ProcessMemory;
pub use qemu::{Board, OLDEST, PACKAGE, PROGRAM, installed};
pub use qemu_features::{Features, MODELS, features};
pub use shared::SharedMemory;

use crate::config::Arch;

/// An emulated machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Machine {
    /// An Arm server.
    Arm(Board),
    /// A PC with VMX.
    Pc(Pc),
    /// A PC with AMD-V.
    AmdPc(AmdPc),
}

/// Unit of a machine's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Elapsed time.
    Time,
    /// Instructions, one per tick.
    PerTick,
    /// Instructions, one per nanosecond.
    PerNanosecond,
}

impl Machine {
    /// Its architecture.
    pub const fn arch(&self) -> Arch {
        match self {
            Self::Arm(_) => Arch::Aarch64,
            Self::Pc(_) | Self::AmdPc(_) => Arch::X86_64,
        }
    }

    /// Unit of its counter.
    pub(crate) const fn counting(&self) -> Counting {
        match self {
            // `-icount shift=0`.
            Self::Arm(Board { icount: true, .. }) | Self::AmdPc(AmdPc { icount: true, .. }) => Counting::PerNanosecond,
            Self::Arm(_) | Self::AmdPc(_) => Counting::Time,
            // Bochs' time-stamp counter.
            Self::Pc(_) => Counting::PerTick,
        }
    }

    /// Starts the machine on `image`. The thread that calls this must outlive the emulator.
    ///
    /// # Errors
    /// The emulator, or a program that it needs, can't be started.
    pub fn start(&self, image: &Path) -> Result<(Emulator, Pipes)> {
        match self {
            Self::Arm(board) => Emulator::start(board, image),
            Self::Pc(pc) => bochs::start(pc, image),
            Self::AmdPc(pc) => amd::start(pc, image),
        }
    }

    /// Makes the machine's RAM, to which this process has access then. `None` if it is not one piece, if the emulator takes no file, or
    /// if the user's arguments for the emulator describe it.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn share_memory(&self, arguments: &[String]) -> io::Result<Option<SharedMemory>> {
        let ram = match self {
            Self::Arm(board) => board.ram(),
            Self::AmdPc(pc) => pc.ram(),
            Self::Pc(_) => None,
        };
        ram.map_or(Ok(None), |ram| SharedMemory::new(&ram, arguments))
    }

    /// Starts the machine with its RAM in memory that this process has access to, if given.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub fn start_with(&self, image: &Path, memory: Option<&SharedMemory>) -> Result<(Emulator, Pipes)> {
        let Some(memory) = memory else { return self.start(image) };
        let with = |extra: &[String]| [&memory.arguments()[..], extra].concat();
        match self {
            Self::Arm(board) => Emulator::start(&Board { extra: with(&board.extra), ..board.clone() }, image),
            Self::AmdPc(pc) => amd::start(&AmdPc { extra: with(&pc.extra), ..pc.clone() }, image),
            Self::Pc(_) => self.start(image),
        }
    }

    /// Opens the memory of an emulator of this machine, if its RAM stays where it is in the process.
    pub fn memory_of(&self, emulator: &Emulator) -> Option<ProcessMemory> {
        match self {
            Self::Pc(pc) if pc.memory_stays() => ProcessMemory::open(emulator.pid()).ok(),
            Self::Arm(_) | Self::Pc(_) | Self::AmdPc(_) => None,
        }
    }

    /// The emulator's command line, to be shown.
    pub fn command_line(&self, image: &Path) -> String {
        match self {
            Self::Arm(board) => shown(PROGRAM, &board.arguments(image)),
            Self::AmdPc(pc) => shown(amd::PROGRAM, &pc.arguments(image)),
            Self::Pc(pc) => format!("bochs, configured thus:\n{}", pc.configuration("IMAGE", "SHARE", 0)),
        }
    }
}

/// A command line, to be shown.
fn shown(program: &str, arguments: &[OsString]) -> String {
    arguments.iter().fold(program.to_owned(), |line, word| line + " " + &word.to_string_lossy())
}

/// Ensures that the emulator of a CPU model is available, as [`ensure`] does.
///
/// # Errors
/// It is not available, and can't be obtained.
pub fn ensure_for_model(arch: Arch, cpu_model: &str) -> Result<()> {
    if arch.has_amd_v(cpu_model) { amd::ensure() } else { ensure(arch) }
}

/// Ensures that the emulator of an architecture is available. Fetches and builds it if necessary and
/// possible.
///
/// # Errors
/// It is not available, and can't be obtained.
pub fn ensure(arch: Arch) -> Result<()> {
    match arch {
        Arch::Aarch64 => installed().map(|_| ()),
        Arch::X86_64 => bochs::ensure().map(|_| ()),
    }
}
