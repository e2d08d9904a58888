//! Child processes: that end with this one, and what they say of errors.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Makes the child get `signal` when the thread that starts it ends, however that happens: a command that is killed leaves nothing behind.
pub fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let ask = move || set_parent_process_death_signal(Some(signal)).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe functions may be called; the closure makes one system call (prctl)
    // and neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) }
}

/// Reads what a child says on its standard error, which is a pipe, while others read its output.
pub fn errors_of(child: &mut Child) -> JoinHandle<String> {
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        text
    })
}
