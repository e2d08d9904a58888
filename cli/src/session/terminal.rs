//! The user's terminal.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};

use crate::cleanup::{self, Entry};

/// The terminal in raw mode, for the lifetime of this value: every key goes to the guest.
#[derive(Debug)]
pub struct Raw {
    _cleanup: Entry,
}

impl Raw {
    /// Enters raw mode if `wanted` and both standard input and output are a terminal.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn enter(wanted: bool) -> Result<Option<Self>> {
        if !(wanted && io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(None);
        }
        let ((), entry) = cleanup::restoring(leave, crossterm::terminal::enable_raw_mode).context("setting up the terminal")?;
        Ok(Some(Self { _cleanup: entry }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    let _ = crossterm::terminal::disable_raw_mode();
}

/// Output for a terminal in raw mode of a console whose lines end with LF alone: with CR before each LF.
pub fn with_returns(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(text) => [text, b"\r\n"].iter().for_each(|part| out.extend_from_slice(part)),
            None => out.extend_from_slice(line),
        }
    }
    out
}

/// Whether standard input is a pipe or a file.
pub fn input_is_piped() -> bool {
    !io::stdin().is_terminal()
}

/// Whether standard output and standard error are the same pipe or file.
pub fn streams_are_one() -> bool {
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) => identity(out) == identity(err),
        _ => false,
    }
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}
