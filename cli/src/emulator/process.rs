//! The emulator's process: started, and ended on every way out.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::{Board, PACKAGE, PROGRAM};
use crate::child::end_with_parent;
use crate::exit;

/// A running emulator. When it is dropped, the process is killed and reaped.
#[derive(Debug)]
pub struct Emulator {
    child: Child,
}

/// The emulator's ends of pipes.
#[derive(Debug)]
pub struct Pipes {
    /// Bytes to the serial line.
    pub input: ChildStdin,
    /// Bytes of the serial line.
    pub output: ChildStdout,
    /// What the emulator itself has to say.
    pub errors: ChildStderr,
}

impl Emulator {
    /// Starts the emulator on `image`. The thread that calls this must outlive the emulator.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(board: &Board, image: &Path) -> Result<(Self, Pipes)> {
        let mut command = Command::new(PROGRAM);
        command.args(board.arguments(image)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Not a member of the terminal's foreground process group: Ctrl-C there is for us to handle, and ends the emulator through us.
        command.process_group(0);
        end_with_parent(&mut command, Signal::KILL);
        let mut child =
            command.spawn().map_err(|error| exit::lacking(format!("{PROGRAM} does not start ({error}): install the package {PACKAGE}")))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let emulator = Self { child };
        match pipes {
            (Some(input), Some(output), Some(errors)) => Ok((emulator, Pipes { input, output, errors })),
            _ => Err(exit::emulator("the emulator has no pipes")),
        }
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
        // It fails only if the process has ended already.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
    }

    /// Ends the process.
    pub fn kill(&mut self) {
        // It fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.kill();
    }
}
