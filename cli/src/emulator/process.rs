//! The emulator's process: started, and ended on every way out.

use std::any::Any;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::privileges::drop_unneeded;
use super::qemu::{Board, PACKAGE, PROGRAM};
use crate::child::end_with_parent;
use crate::exit;

/// A running emulator. Dropping it kills and reaps the process.
pub struct Emulator {
    child: Child,
    /// Whether an exit status is that of a normal end of the emulator.
    is_success: fn(ExitStatus) -> bool,
    /// Files that must be there while it runs.
    _files: Option<Box<dyn Any>>,
}

/// The emulator's ends of pipes.
pub struct Pipes {
    /// Bytes to the serial line.
    pub input: Box<dyn Write + Send>,
    /// Bytes of the serial line.
    pub output: Box<dyn Read + Send>,
    /// The emulator's messages.
    pub errors: Box<dyn Read + Send>,
}

impl Emulator {
    /// Starts the emulator on `image`. The thread that calls this must outlive the emulator.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(board: &Board, image: &Path) -> Result<(Self, Pipes)> {
        let mut command = Command::new(PROGRAM);
        drop_unneeded(&mut command);
        command.args(board.arguments(image)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut emulator = Self::spawn(&mut command, |status| status.success(), None)
            .map_err(|error| exit::lacking(format!("{PROGRAM} can't be started ({error}): install the package {PACKAGE}")))?;
        let pipes = emulator.pipes().ok_or_else(|| exit::emulator("the emulator has no pipes"))?;
        Ok((emulator, pipes))
    }

    /// Takes the process's pipes.
    pub(super) fn pipes(&mut self) -> Option<Pipes> {
        let (input, output, errors) = (self.child.stdin.take()?, self.child.stdout.take()?, self.child.stderr.take()?);
        Some(Pipes { input: Box::new(input), output: Box::new(output), errors: Box::new(errors) })
    }

    /// Starts a process that ends with this one. `files` must be there while it runs.
    pub(super) fn spawn(command: &mut Command, is_success: fn(ExitStatus) -> bool, files: Option<Box<dyn Any>>) -> std::io::Result<Self> {
        // Not in the terminal's foreground process group: Ctrl-C is handled by this program, which then ends
        // the emulator.
        command.process_group(0);
        end_with_parent(command, Signal::KILL);
        Ok(Self { child: command.spawn()?, is_success, _files: files })
    }

    /// The process.
    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether a status from [`Emulator::wait`] is that of a normal end.
    pub fn is_success(&self, status: ExitStatus) -> bool {
        (self.is_success)(status)
    }

    /// Waits until the process ends, but no longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Asks the process to end: it ends well, as if its machine had been turned off.
    pub fn terminate(&self) {
        // Fails only if the process has already ended.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
    }

    /// Ends the process.
    pub fn kill(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.kill();
    }
}
