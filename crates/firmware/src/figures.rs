//! Figures of a machine that measures: a JSON document, and the parts in which UEFI firmware keeps it until the next start. Stile reads
//! the parts as untrusted input.
//!
//! | a part's bytes | content |
//! | --- | --- |
//! | 0 to 3 | `STIF` |
//! | 4, 5 | its index, from 0 on; the number of parts |
//! | 6, 7 | zero |
//! | 8 to 11 | checksum of the whole document (FNV-1a with 32 bits), little-endian |
//! | the others | its piece of the document: [`PIECE`] bytes, in the last part 1 to as many |

pub mod delivery;

use core::fmt::{self, Write};

use heapless::Vec;

/// Maximum length of a document in bytes.
pub const LONGEST: usize = 16 << 10;
/// Bytes of the document in a part. With header and name, a variable then fits EDK2's smallest limit, 1 KiB.
pub const PIECE: usize = 896;
/// Maximum length of a part in bytes.
pub const PART: usize = HEADER + PIECE;
/// Maximum number of parts.
pub const MOST_PARTS: usize = LONGEST.div_ceil(PIECE);

const HEADER: usize = 12;
const MAGIC: [u8; 4] = *b"STIF";

/// Maximum length of a line of the description, and of an operation's, in bytes.
const LINE: usize = 512;
/// Space for the end of a document.
const END: usize = 64;

/// The document under construction: an object with the version of Stile, the lines of the machine's description, and the operations.
pub struct Document {
    text: Vec<u8, LONGEST>,
    /// The line that a console is writing; `None` if it is too long.
    line: Option<Vec<u8, LINE>>,
    state: State,
    /// The list has an item.
    has_items: bool,
    /// Something was left out.
    is_short: bool,
}

#[derive(PartialEq, Eq)]
enum State {
    Machine,
    Operations,
    Ended,
}

impl Document {
    /// Begins a document of a version of Stile.
    pub fn new(version: &str) -> Document {
        let mut document = Document { text: Vec::new(), line: Some(Vec::new()), state: State::Machine, has_items: false, is_short: false };
        let _ = write!(document.text, "{{\n  \"stile\": \"{version}\",\n  \"machine\": [");
        document
    }

    /// Adds a line of the machine's description.
    pub fn describe(&mut self, line: fmt::Arguments<'_>) {
        if self.state == State::Machine {
            let mut escaped = Escaped(Vec::new());
            self.is_short |= escaped.write_fmt(line).is_err();
            self.item(&[b"\"", &escaped.0, b"\""]);
        }
    }

    /// Ends the description; operations follow.
    pub fn measure(&mut self) {
        if self.state == State::Machine {
            let _ = self.text.extend_from_slice(b"\n  ],\n  \"operations\": [");
            (self.state, self.has_items) = (State::Operations, false);
        }
    }

    /// Adds a byte of a console. Lines that are no object of an operation are left out.
    pub fn byte(&mut self, byte: u8) {
        match (byte, &mut self.line) {
            (b'\n', _) => {
                if let Some(line) = self.line.replace(Vec::new())
                    && is_operation(&line)
                {
                    self.operation(&line);
                }
            }
            (b'\r', _) | (_, None) => {}
            (_, Some(line)) => {
                if line.push(byte).is_err() {
                    self.line = None;
                }
            }
        }
    }

    fn operation(&mut self, line: &[u8]) {
        if self.state == State::Operations {
            self.item(&[line]);
        }
    }

    /// Ends the document, and returns its text. `passed`: all has been measured.
    pub fn end(&mut self, passed: bool) -> &[u8] {
        self.measure();
        if self.state == State::Operations {
            self.state = State::Ended;
            let _ = write!(self.text, "\n  ],\n  \"complete\": {}\n}}\n", passed && !self.is_short);
        }
        &self.text
    }

    fn item(&mut self, parts: &[&[u8]]) {
        let separator: &[u8] = if self.has_items { b",\n    " } else { b"\n    " };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.text.len() + separator.len() + length + END > LONGEST {
            self.is_short = true;
            return;
        }
        let _ = self.text.extend_from_slice(separator);
        parts.iter().for_each(|part| {
            let _ = self.text.extend_from_slice(part);
        });
        self.has_items = true;
    }
}

/// Whether a line is the object of an operation: text, in braces.
fn is_operation(line: &[u8]) -> bool {
    line.starts_with(b"{\"operation\":") && line.ends_with(b"}") && line.iter().all(is_text)
}

fn is_text(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// The inside of a JSON string. Line ends are left out, and characters other than ASCII's are question marks.
struct Escaped(Vec<u8, LINE>);

impl Write for Escaped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars().filter(|&char| char != '\n') {
            let byte = u8::try_from(char).ok().filter(is_text).unwrap_or(b'?');
            let escape: &[u8] = if matches!(byte, b'"' | b'\\') { b"\\" } else { b"" };
            // Both or neither: a lone backslash would escape the string's end.
            if self.0.len() + 2 > LINE {
                return Err(fmt::Error);
            }
            let _ = self.0.extend_from_slice(escape);
            let _ = self.0.push(byte);
        }
        Ok(())
    }
}

/// Checksum of a document. Not by crate `crc`, whose algorithms have pointers in constant data: they are wrong before the image is at its
/// link address, where Stile's EFI program joins parts.
fn checksum(document: &[u8]) -> u32 {
    document.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A part of a document. `None` beyond the last one, or if the document is too long.
pub fn part(document: &[u8], index: usize) -> Option<Vec<u8, PART>> {
    let piece = document.chunks(PIECE).nth(index)?;
    let count = document.len().div_ceil(PIECE);
    if count > MOST_PARTS {
        return None;
    }
    let mut part = Vec::new();
    part.extend_from_slice(&MAGIC).ok()?;
    part.extend_from_slice(&[index as u8, count as u8, 0, 0]).ok()?;
    part.extend_from_slice(&checksum(document).to_le_bytes()).ok()?;
    part.extend_from_slice(piece).ok()?;
    Some(part)
}

/// Reason for which parts are no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A part is missing, damaged or too long, or does not belong to the others.
    Damaged,
    /// Firmware can't read a part; the next start may.
    Unreadable,
}

use Fault::Damaged;

/// Joins the parts of a document in `to`. `read` reads the part with an index, and returns its length; `None` if there is none. Returns
/// `None` if there is no first part.
///
/// # Errors
/// A part is missing or damaged, or does not belong to the others, or `to` has no room; or the document is not text; or the fault of
/// `read`.
pub fn join(mut read: impl FnMut(usize, &mut [u8; PART]) -> Result<Option<usize>, Fault>, to: &mut [u8]) -> Result<Option<&[u8]>, Fault> {
    let (mut length, mut index, mut first) = (0, 0, None);
    loop {
        let mut bytes = [0; PART];
        let Some(size) = read(index, &mut bytes)? else {
            return if index == 0 { Ok(None) } else { Err(Damaged) };
        };
        let part = bytes.get(..size).ok_or(Damaged)?;
        let (header, piece) = part.split_at_checked(HEADER).ok_or(Damaged)?;
        let [m, a, g, i, at, count, 0, 0, c, r, c2, c3] = *header else { return Err(Damaged) };
        let whole = *first.get_or_insert((count, u32::from_le_bytes([c, r, c2, c3])));
        let is_last = index + 1 == usize::from(count);
        let has_size = if is_last { !piece.is_empty() } else { piece.len() == PIECE };
        if [m, a, g, i] != MAGIC || usize::from(at) != index || whole != (count, u32::from_le_bytes([c, r, c2, c3])) || !has_size {
            return Err(Damaged);
        }
        to.get_mut(length..).and_then(|to| to.get_mut(..piece.len())).ok_or(Damaged)?.copy_from_slice(piece);
        length += piece.len();
        index += 1;
        if is_last {
            let document = to.get(..length).ok_or(Damaged)?;
            let is_whole = checksum(document) == whole.1 && document.iter().all(|byte| is_text(byte) || *byte == b'\n');
            return if is_whole { Ok(Some(document)) } else { Err(Damaged) };
        }
        if index == MOST_PARTS {
            return Err(Damaged);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn line(document: &mut Document, line: &str) {
        line.bytes().chain(*b"\r\n").for_each(|byte| document.byte(byte));
    }

    fn text(document: &mut Document) -> String {
        String::from_utf8(document.end(true).to_vec()).unwrap()
    }

    #[test]
    fn a_document_has_machine_and_operations() {
        let mut document = Document::new("1.2.3");
        line(&mut document, "{\"operation\":\"too early\"}");
        document.describe(format_args!("CPU: {} \\ \"µ\"\n", 7));
        document.describe(format_args!("RAM\n"));
        document.measure();
        document.describe(format_args!("too late\n"));
        line(&mut document, "probe: hello");
        line(&mut document, "{\"operation\":\"loop\",\"ticks\":1}");
        line(&mut document, "{\"operation\":\"\u{1b}\"}");
        line(&mut document, &"x".repeat(600));
        line(&mut document, "{\"operation\":\"ipi\",\"ticks\":2}");
        let expected = r#"{
  "stile": "1.2.3",
  "machine": [
    "CPU: 7 \\ \"?\"",
    "RAM"
  ],
  "operations": [
    {"operation":"loop","ticks":1},
    {"operation":"ipi","ticks":2}
  ],
  "complete": true
}
"#;
        assert_eq!(text(&mut document), expected);
        line(&mut document, "{\"operation\":\"late\"}");
        assert_eq!(text(&mut document), expected);
        assert!(String::from_utf8(Document::new("0").end(false).to_vec()).unwrap().ends_with("[\n  ],\n  \"complete\": false\n}\n"));
    }

    #[test]
    fn long_documents_are_incomplete() {
        let mut document = Document::new("0");
        document.measure();
        for _ in 0..400 {
            line(&mut document, &std::format!("{{\"operation\":\"{}\"}}", "o".repeat(80)));
        }
        let text = text(&mut document);
        assert!(text.len() <= LONGEST && text.len() > LONGEST - 200 && text.ends_with("o\"}\n  ],\n  \"complete\": false\n}\n"));
    }

    #[test]
    fn a_long_line_ends_before_an_escape() {
        for length in 505..520 {
            let mut document = Document::new("0");
            document.describe(format_args!("{}\\\\\\", "x".repeat(length)));
            let text = text(&mut document);
            let line = text.lines().nth(3).unwrap();
            let inside = line.trim_end_matches('"');
            assert!((inside.len() - inside.trim_end_matches('\\').len()).is_multiple_of(2), "{line}");
        }
    }

    fn joined(parts: &[Vec<u8, PART>]) -> Result<Option<vec::Vec<u8>>, Fault> {
        let mut to = vec![0; LONGEST];
        let read = |index: usize, to: &mut [u8; PART]| {
            let Some(part) = parts.get(index) else { return Ok(None) };
            to[..part.len()].copy_from_slice(part);
            Ok(Some(part.len()))
        };
        join(read, &mut to).map(|document| document.map(<[u8]>::to_vec))
    }

    fn parts(document: &[u8]) -> vec::Vec<Vec<u8, PART>> {
        (0..).map_while(|index| part(document, index)).collect()
    }

    #[test]
    fn parts_are_joined() {
        for length in [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, LONGEST] {
            let document = vec![b'x'; length];
            let parts = parts(&document);
            assert_eq!(parts.len(), length.div_ceil(PIECE));
            assert_eq!(joined(&parts), Ok(Some(document)));
            if parts.len() > 1 {
                assert_eq!(joined(&parts[..parts.len() - 1]), Err(Damaged));
                assert_eq!(joined(&parts[1..]), Err(Damaged));
            }
        }
        assert_eq!(joined(&[]), Ok(None));
        assert!(parts(&[b'x'; LONGEST + PIECE]).is_empty() && parts(&[]).is_empty());
        assert_eq!(joined(&parts(b"\x1b[2J")), Err(Damaged), "no text");
        let (one, other) = (parts(&[b'x'; 2 * PIECE]), parts(&[b'y'; 2 * PIECE]));
        assert_eq!(joined(&[one[0].clone(), other[1].clone()]), Err(Damaged));
    }

    #[test]
    fn there_may_be_no_room() {
        let parts = parts(&[b'x'; 100]);
        assert_eq!(
            join(
                |_, to| {
                    to[..112].copy_from_slice(&parts[0]);
                    Ok(Some(112))
                },
                &mut [0; 99]
            ),
            Err(Damaged)
        );
        assert_eq!(join(|_, _| Ok(Some(PART + 1)), &mut [0; 99]), Err(Damaged));
    }

    #[test]
    fn an_unreadable_part_is_not_missing() {
        let parts = parts(&[b'x'; 3 * PIECE]);
        for fault in [Fault::Unreadable, Damaged] {
            for faulty in 0..3 {
                let read = |index: usize, to: &mut [u8; PART]| {
                    to[..PART].copy_from_slice(&parts[index]);
                    if index == faulty { Err(fault) } else { Ok(Some(PART)) }
                };
                assert_eq!(join(read, &mut [0; LONGEST]), Err(fault));
            }
        }
    }

    proptest! {
        #[test]
        fn damage_is_found(at in 0usize..3 * PART - 300, bit in 0u8..8) {
            let mut parts = parts(&[b'x'; 3 * PIECE - 300]);
            parts[at / PART][at % PART] ^= 1 << bit;
            prop_assert_eq!(joined(&parts), Err(Damaged));
        }

        #[test]
        fn any_bytes_are_no_panic(seed: std::vec::Vec<std::vec::Vec<u8>>, count: u8) {
            let mut to = vec![0; 2000];
            let mut bytes = seed.iter();
            let read = |index: usize, to: &mut [u8; PART]| {
                let Some(part) = bytes.next() else { return Ok(None) };
                to[..12].copy_from_slice(&[b'S', b'T', b'I', b'F', index as u8, count, 0, 0, 1, 2, 3, 4]);
                Ok(Some((12 + part.len()).min(PART)))
            };
            let _ = join(read, &mut to);
        }

        /// The document's lines are objects in braces and its text is ASCII, for any bytes of a console.
        #[test]
        fn any_console_is_text(bytes: std::vec::Vec<u8>) {
            let mut document = Document::new("0");
            document.measure();
            bytes.iter().for_each(|&byte| document.byte(byte));
            prop_assert!(document.end(true).iter().all(|byte| is_text(byte) || *byte == b'\n'));
        }
    }
}
