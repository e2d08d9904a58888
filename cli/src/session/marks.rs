//! Finds the marks of [`crate::initramfs`] in a console's output and takes them out.

use crate::initramfs::Marks;

/// The state of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The system starts.
    Before,
    /// The command or shell runs.
    Within,
    /// Reading the status.
    Status,
    /// Finished.
    After,
}

/// Whether to show only a command's output, or everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// The output between the marks.
    Command,
    /// All but the marks.
    All,
}

/// A part of a console's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// For the user.
    Shown(Vec<u8>),
    /// For the log alone.
    Hidden(Vec<u8>),
}

/// Filters one console's output.
#[derive(Debug)]
pub struct Filter {
    marks: Marks,
    show: Show,
    state: State,
    /// A possible beginning of a mark, or the digits of the status.
    held: Vec<u8>,
    status: Option<u8>,
    /// The shell is at a prompt, and nothing was typed since.
    at_prompt: bool,
    /// Output is hidden until the next prompt.
    hidden: bool,
}

/// Maximum length in bytes of a status and the mark behind it.
const LONGEST_STATUS: usize = 64;

/// Moves to the start of a terminal's line and erases it (ECMA-48: CR, EL).
const CLEAR_LINE: &[u8] = b"\r\x1b[K";

impl Filter {
    /// A filter for a console without output yet.
    pub fn new(marks: Marks, show: Show) -> Self {
        Self { marks, show, state: State::Before, held: Vec::new(), status: None, at_prompt: false, hidden: false }
    }

    /// Whether the command or the shell was started: from then on input reaches it.
    pub fn has_begun(&self) -> bool {
        self.state != State::Before
    }

    /// The command's status, once known.
    pub fn status(&self) -> Option<u8> {
        self.status
    }

    /// Whether the shell is at a prompt, with nothing typed since.
    pub fn is_at_prompt(&self) -> bool {
        self.at_prompt
    }

    /// Hides output until the next prompt: the response to generated input.
    pub fn hide(&mut self) {
        (self.at_prompt, self.hidden) = (false, true);
    }

    /// Records that the user has typed: shows output from now on.
    pub fn typed(&mut self) {
        (self.at_prompt, self.hidden) = (false, false);
    }

    /// Takes the next bytes of the console.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Part> {
        self.held.extend_from_slice(bytes);
        let mut parts = Vec::new();
        loop {
            let marks = self.awaited();
            let found = marks.iter().filter_map(|mark| Some((find(&self.held, mark.as_bytes())?, mark))).min_by_key(|(at, _)| *at);
            let Some((at, mark)) = found else {
                if self.state == State::Status && self.held.len() > LONGEST_STATUS {
                    // Not from our program: the guest chooses how much of this there is.
                    self.state = State::After;
                }
                let keep = match self.state {
                    State::Status => self.held.len(),
                    _ => marks.iter().map(|mark| partial(&self.held, mark.as_bytes())).max().unwrap_or(0),
                };
                let rest = self.held.split_off(self.held.len() - keep);
                let text = std::mem::replace(&mut self.held, rest);
                self.push(&mut parts, text);
                return parts;
            };
            let rest = self.held.split_off(at + mark.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            if self.state == State::Status {
                // The kernel's statuses are bytes; other numbers are not from our program.
                self.status = std::str::from_utf8(&text).ok().and_then(|digits| digits.trim().parse().ok());
            } else {
                self.push(&mut parts, text);
            }
            if *mark == self.marks.ready {
                self.at_prompt = true;
                if std::mem::take(&mut self.hidden) {
                    // The previous prompt is on this line of the terminal.
                    self.push(&mut parts, CLEAR_LINE.to_vec());
                }
                continue;
            }
            self.state = match (self.state, self.show) {
                (State::Before, _) => State::Within,
                (State::Within, Show::Command) => State::Status,
                _ => State::After,
            };
        }
    }

    /// Marks that are valid next.
    fn awaited(&self) -> Vec<String> {
        let Marks { begin, end, stop, bye, ready } = &self.marks;
        match (self.state, self.show) {
            (State::Before, _) => vec![begin.clone()],
            (State::Within, Show::Command) => vec![end.clone()],
            (State::Within, Show::All) => vec![bye.clone(), ready.clone()],
            (State::Status, _) => vec![stop.clone()],
            (State::After, _) => Vec::new(),
        }
    }

    /// The buffered output when the console ends.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let text = std::mem::take(&mut self.held);
        if self.state != State::Status {
            self.push(&mut parts, text);
        }
        parts
    }

    fn push(&self, parts: &mut Vec<Part>, text: Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let shown = !self.hidden && (self.show == Show::All || self.state == State::Within);
        parts.push(if shown { Part::Shown(text) } else { Part::Hidden(text) });
    }
}

fn find(text: &[u8], mark: &[u8]) -> Option<usize> {
    if mark.is_empty() {
        return None;
    }
    text.windows(mark.len()).position(|window| window == mark)
}

/// Number of bytes at the end of `text` that may be the beginning of `mark`.
fn partial(text: &[u8], mark: &[u8]) -> usize {
    let most = text.len().min(mark.len().saturating_sub(1));
    (1..=most).rev().find(|&count| mark.starts_with(&text[text.len() - count..])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(filter: &mut Filter, input: &[u8], chunk: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut shown, mut hidden) = (Vec::new(), Vec::new());
        let mut sort = |parts: Vec<Part>| {
            for part in parts {
                match part {
                    Part::Shown(text) => shown.extend(text),
                    Part::Hidden(text) => hidden.extend(text),
                }
            }
        };
        for chunk in input.chunks(chunk) {
            sort(filter.feed(chunk));
        }
        sort(filter.finish());
        (shown, hidden)
    }

    #[test]
    fn a_commands_output_is_exact_whatever_the_fragmentation() {
        let marks = Marks::new(42);
        let output = b"no newline at the end \x1e\x00\xff \x1estile";
        let mut line = b"[    0.0] boot\r\n".to_vec();
        line.extend(marks.begin.bytes());
        line.extend(output);
        line.extend(format!("{}7{}", marks.end, marks.stop).bytes());
        line.extend(b"\r\nreboot: Power down\r\n");
        for chunk in 1..line.len() {
            let mut filter = Filter::new(marks.clone(), Show::Command);
            let (shown, hidden) = collect(&mut filter, &line, chunk);
            assert_eq!(shown, output, "in chunks of {chunk}");
            assert_eq!(hidden, b"[    0.0] boot\r\n\r\nreboot: Power down\r\n");
            assert_eq!(filter.status(), Some(7));
        }
    }

    #[test]
    fn a_shell_shows_everything_but_the_marks() {
        let marks = Marks::new(1);
        let line = format!("boot {}~ # exit\r\n{}down", marks.begin, marks.bye);
        let mut filter = Filter::new(marks, Show::All);
        assert_eq!(filter.feed(b"bo"), [Part::Shown(b"bo".to_vec())]);
        assert!(!filter.has_begun());
        let (shown, hidden) = collect(&mut filter, &line.as_bytes()[2..], 3);
        assert_eq!(shown, b"ot ~ # exit\r\ndown");
        assert_eq!(hidden, b"");
        assert!(filter.has_begun());
        assert_eq!(filter.status(), None);
    }

    #[test]
    fn generated_input_leaves_no_trace() {
        let marks = Marks::new(1);
        let mut filter = Filter::new(marks.clone(), Show::All);
        filter.feed(format!("boot\n{}{}~ # ", marks.begin, marks.ready).as_bytes());
        assert!(filter.is_at_prompt());
        filter.hide();
        assert_eq!(filter.feed(b"stty rows 9 cols 9\r\n"), [Part::Hidden(b"stty rows 9 cols 9\r\n".to_vec())]);
        let shown = [Part::Shown(CLEAR_LINE.to_vec()), Part::Shown(b"~ # ".to_vec())];
        assert_eq!(filter.feed(format!("{}~ # ", marks.ready).as_bytes()), shown);
        assert!(filter.is_at_prompt());
        filter.typed();
        assert!(!filter.is_at_prompt());
        assert_eq!(filter.feed(b"ls\r\n"), [Part::Shown(b"ls\r\n".to_vec())]);
    }

    #[test]
    fn a_guest_that_dies_has_no_status() {
        let marks = Marks::new(1);
        let line = format!("{}abc{}1", marks.begin, marks.end);
        let mut filter = Filter::new(marks, Show::Command);
        assert_eq!(collect(&mut filter, line.as_bytes(), 5).0, b"abc");
        assert_eq!(filter.status(), None);
    }

    #[test]
    fn an_endless_status_is_not_kept() {
        let marks = Marks::new(1);
        assert!(marks.stop.len() + 8 < LONGEST_STATUS);
        let mut filter = Filter::new(marks.clone(), Show::Command);
        filter.feed(format!("{}abc{}", marks.begin, marks.end).as_bytes());
        for _ in 0..100 {
            filter.feed(&[b'1'; 10]);
            assert!(filter.held.len() <= LONGEST_STATUS);
        }
        filter.feed(marks.stop.as_bytes());
        assert_eq!(filter.status(), None);
    }
}
