//! The latest output of a console.

use std::collections::VecDeque;

/// Capacity in bytes.
const CAPACITY: usize = 64 * 1024;

/// Keeps the end of a console's output.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    /// Takes more output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(CAPACITY);
        self.bytes.drain(..excess);
    }

    /// The last `count` lines, without line ends and without control characters, so that they can be shown anywhere.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text.lines().map(plain).collect();
        let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
        lines[end.saturating_sub(count)..end].to_vec()
    }

    /// Returns the raw end of the output, from the start of one of the last `count` lines: used to redraw a console.
    pub fn raw(&self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let start = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').nth(count).map_or(0, |(at, _)| at + 1);
        without_questions(&bytes[start..])
    }
}

/// Without the control sequences that make a terminal answer (ECMA-48: DSR, `CSI … n`, and DA, `CSI … c`): it would answer a second time.
fn without_questions(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\x1b[") {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let end = rest[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)).map_or(rest.len(), |last| last + 3);
        let (sequence, after) = rest.split_at(end);
        if !matches!(sequence.last(), Some(b'n' | b'c')) {
            out.extend_from_slice(sequence);
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    out
}

/// Without terminal control sequences (ECMA-48: CSI, and ESC with one character) and other control characters.
pub fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                if chars.next() == Some('[') {
                    while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
                }
            }
            '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_as_plain_text() {
        let mut tail = Tail::default();
        for line in 0..10_000 {
            tail.push(format!("line {line}\r\n").as_bytes());
        }
        tail.push(b"\x1b[1;31mred\x1b[0m\x07 end\r\n\r\n");
        assert_eq!(tail.lines(3), ["line 9998", "line 9999", "red end"]);
        assert!(tail.lines(100_000).len() < 7000);
        assert_eq!(Tail::default().lines(3), Vec::<String>::new());
    }

    #[test]
    fn a_console_is_repeated_from_a_lines_start() {
        let mut tail = Tail::default();
        tail.push(b"a\r\nb\r\nc\r\n~ # ");
        assert_eq!(tail.raw(2), b"b\r\nc\r\n~ # ");
        assert_eq!(tail.raw(9), b"a\r\nb\r\nc\r\n~ # ");
        tail.push(b"\x1b[6n\x1b[1mbold\x1b[0m\x1b[");
        assert_eq!(tail.raw(0), b"~ # \x1b[1mbold\x1b[0m\x1b[");
    }
}
