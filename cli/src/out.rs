//! Standard output and standard error: the reader may leave, and the file may be full.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use thiserror::Error;

/// Standard output can't be written.
#[derive(Debug, Error)]
#[error("standard output can't be written: {0}")]
pub struct Unwritable(pub io::Error);

// By hand: thiserror's `from` makes it the error's source, too, and messages would name it twice.
impl From<io::Error> for Unwritable {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl Unwritable {
    /// Whether the reader has closed the pipe, like `head`. That needs no message.
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
    match terminal_width(&out) {
        Some(width) => writeln!(out, "{}", stile_config::fit(&text.to_string(), width))?,
        None => writeln!(out, "{text}")?,
    }
    // Standard output is flushed here, because a failure at program exit would be unnoticed.
    Ok(out.flush()?)
}

/// Writes a value as JSON, a line that is divided on no terminal.
///
/// # Errors
/// The line can't be written.
pub fn json(value: &impl Serialize) -> Result<(), Unwritable> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
    line.push(b'\n');
    Ok(text(&line)?)
}

/// Writes bytes to standard output as they are.
///
/// # Errors
/// They can't be written.
pub fn text(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes a line to standard error. Failures are ignored: they can't be reported.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text that a terminal shows as it is: control characters are escaped. It may come from a guest's disk, or from a file
/// that others wrote.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && letter != '\t' {
            printable.extend(letter.escape_debug());
        } else {
            printable.push(letter);
        }
    }
    printable
}

/// Whether the user lets terminals have colours (no-color.org).
pub fn may_colour() -> bool {
    wants_colour(std::env::var_os("NO_COLOR").as_deref())
}

/// Whether a value of NO_COLOR leaves colours on: if it is not set, or empty.
fn wants_colour(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

/// The width of a stream's terminal in columns, if it is one.
pub fn terminal_width(stream: &impl IsTerminal) -> Option<usize> {
    let (columns, _) = stream.is_terminal().then(crossterm::terminal::size)?.ok()?;
    (columns > 0).then_some(usize::from(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_can_be_switched_off() {
        let colours = [None, Some(""), Some("1"), Some("0")].map(|value| wants_colour(value.map(OsStr::new)));
        assert_eq!(colours, [true, true, false, false]);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\tü\x1b]0;x\x07\n\u{9b}2J"), "a\tü\\u{1b}]0;x\\u{7}\\n\\u{9b}2J");
    }
}
