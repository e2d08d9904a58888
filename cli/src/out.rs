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
        Some(width) => writeln!(out, "{}", fit(&text.to_string(), width))?,
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

/// Divides lines that are too long between words, as a terminal would not. The rest of a line stands below the column that it belongs to.
pub fn fit(text: &str, width: usize) -> String {
    text.lines().map(|line| fit_line(line, width)).collect::<Vec<_>>().join("\n")
}

/// Spaces between two columns of a table.
const GAP: &str = "  ";

fn fit_line(line: &str, width: usize) -> String {
    let (mut fitted, mut rest) = (String::new(), line.to_owned());
    while let Some((limit, next)) = rest.char_indices().nth(width) {
        let indent = rest.len() - rest.trim_start_matches(' ').len();
        // A word may end at the very edge.
        let Some(space) = rest[..limit + next.len_utf8()].rfind(' ').filter(|&space| space > indent) else { break };
        let (head, tail) = rest.split_at(space);
        let column = head.trim_end().rfind(GAP).map_or(0, |gap| head[..gap + GAP.len()].chars().count());
        let within_column = !head.ends_with(' ') && !tail.starts_with(GAP);
        // A narrow last column would become a tower of words.
        let below = match () {
            () if !fitted.is_empty() => indent,
            () if within_column && column > indent && column <= width / 2 => column,
            () => indent + 4,
        };
        fitted += head.trim_end();
        fitted.push('\n');
        let tail = tail.trim_start().to_owned();
        if below + tail.split(' ').next().map_or(0, |word| word.chars().count()) > width {
            rest = tail;
            break;
        }
        rest = " ".repeat(below) + &tail;
    }
    fitted + &rest
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

    #[test]
    fn long_lines_are_divided_between_words() {
        assert_eq!(fit("a short line\n\nanother", 12), "a short line\n\nanother");
        assert_eq!(fit("  one two three", 11), "  one two\n      three");
        assert_eq!(fit("0x1000  4 KiB  device tree", 18), "0x1000  4 KiB\n    device tree", "the column is too far right");
        assert_eq!(fit("name  a text of several words", 16), "name  a text of\n      several\n      words");
        assert_eq!(fit("unbreakable", 4), "unbreakable");
        assert_eq!(fit("ü ü ü ü", 5), "ü ü ü\n    ü");
        assert_eq!(fit("a bbbbbbbbbb", 5), "a\nbbbbbbbbbb");
    }

    #[test]
    fn every_line_fits_and_every_word_stays() {
        let text = "  0x0040000000-0x00428cffff   40.8 MiB   - kernel, 976.1 KiB of it zeroes      27 (PPI 11), 30 (PPI 14), level";
        for width in 30..100 {
            let fitted = fit(text, width);
            assert!(fitted.lines().all(|line| line.chars().count() <= width), "{width}: {fitted}");
            assert!(fitted.split_whitespace().eq(text.split_whitespace()), "{width}: {fitted}");
        }
    }
}
