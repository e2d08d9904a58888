//! Standard output and standard error: the reader may leave, and the file may be full.

use std::fmt::Display;
use std::io::{self, Write};

use thiserror::Error;

/// Standard output can't be written.
#[derive(Debug, Error)]
#[error("standard output can't be written: {0}")]
pub struct Unwritable(#[from] pub io::Error);

impl Unwritable {
    /// Whether the reader has closed the pipe, as `head` does. That is no failure worth a message.
    pub fn reader_left(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes a line to standard output.
///
/// # Errors
/// The line can't be written.
pub fn line(text: impl Display) -> Result<(), Unwritable> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    // Standard output is flushed here, because a failure at the program's end goes unnoticed.
    Ok(out.flush()?)
}

/// Writes a line to standard error, if that is possible: nobody could be told otherwise.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
