//! Several consoles on one stream: whole lines, each with its VM's name before it.

/// Maximum number of bytes of a line to buffer: guests determine the length of lines, but not the memory that
/// they take.
const LONGEST: usize = 64 << 10;

/// Between a VM's name and its line.
const SEPARATOR: &str = " | ";

/// Prefixes lines of consoles' output. A line is written when it is complete, so that another VM's output never
/// splits it, even if it arrives in fragments.
#[derive(Debug)]
pub struct Lines {
    prefixes: Vec<String>,
    /// Output of each console since its last line end.
    partial: Vec<Vec<u8>>,
    /// The console whose unfinished line ends the stream, and the number of bytes of that line written.
    open: Option<(usize, usize)>,
}

impl Lines {
    /// For consoles with these names.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let width = names.clone().map(str::len).max().unwrap_or(0);
        let prefixes: Vec<String> = names.map(|name| format!("{name:<width$}{SEPARATOR}")).collect();
        let partial = vec![Vec::new(); prefixes.len()];
        Self { prefixes, partial, open: None }
    }

    /// Adds the console of a VM that was created later.
    pub fn add(&mut self, name: &str) {
        let width = self.prefixes.first().map_or(0, |first| first.chars().count().saturating_sub(SEPARATOR.len()));
        self.prefixes.push(format!("{name:<width$}{SEPARATOR}"));
        self.partial.push(Vec::new());
    }

    /// Processes output of the console with index `vm`, and returns the bytes to write: the lines that it
    /// completes.
    pub fn feed(&mut self, vm: usize, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(partial) = self.partial.get_mut(vm) else { return out };
        partial.extend_from_slice(bytes);
        if let Some(end) = partial.iter().rposition(|&byte| byte == b'\n') {
            let rest = partial.split_off(end + 1);
            let text = std::mem::replace(partial, rest);
            for line in text.split_inclusive(|&byte| byte == b'\n') {
                self.write(vm, line.strip_suffix(b"\n").unwrap_or(line), &mut out);
            }
        }
        if self.partial[vm].len() >= LONGEST {
            out.extend(self.end(vm));
        }
        out
    }

    /// Ends the unfinished line of a console, if any: no more output will follow.
    pub fn end(&mut self, vm: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let line = self.partial.get_mut(vm).map(std::mem::take).unwrap_or_default();
        if !line.is_empty() {
            self.write(vm, &line, &mut out);
        }
        out
    }

    /// Ends the unfinished lines of all consoles.
    pub fn finish(&mut self) -> Vec<u8> {
        (0..self.partial.len()).flat_map(|vm| self.end(vm)).collect()
    }

    /// Returns the unfinished line of a console for an interactive user: prompts have no newline. If another
    /// VM's line precedes its end, the whole line is repeated when it ends.
    pub fn prompt(&mut self, vm: usize) -> Vec<u8> {
        let mut out = Vec::new();
        if self.has_prompt(vm) {
            let from = self.begin(vm, &mut out);
            out.extend_from_slice(&self.partial[vm][from..]);
            self.open = Some((vm, self.partial[vm].len()));
        }
        out
    }

    /// Whether [`Lines::prompt`] has output.
    pub fn has_prompt(&self, vm: usize) -> bool {
        let shown = self.open.filter(|(open, _)| *open == vm).map_or(0, |(_, shown)| shown);
        self.partial.get(vm).is_some_and(|line| line.len() > shown)
    }

    /// Advances to the continuation of a console's line, and returns the number of its bytes already written.
    fn begin(&mut self, vm: usize, out: &mut Vec<u8>) -> usize {
        match self.open.take() {
            Some((open, shown)) if open == vm => shown,
            other => {
                if other.is_some() {
                    out.push(b'\n');
                }
                out.extend_from_slice(self.prefixes[vm].as_bytes());
                0
            }
        }
    }

    /// Writes a whole line, given without its newline.
    fn write(&mut self, vm: usize, line: &[u8], out: &mut Vec<u8>) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let from = self.begin(vm, out).min(line.len());
        out.extend_from_slice(&line[from..]);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines::new(["web", "db"].into_iter())
    }

    #[test]
    fn a_console_that_is_added_has_its_own_lines() {
        let mut lines = lines();
        assert_eq!(lines.feed(2, b"nobody's\n"), b"");
        lines.add("x");
        lines.add("longer");
        assert_eq!(lines.feed(2, b"a\n"), b"x   | a\n");
        assert_eq!(lines.feed(3, b"b\n"), b"longer | b\n");
        assert_eq!(lines.feed(1, b"c\n"), b"db  | c\n");
    }

    #[test]
    fn lines_of_two_consoles_do_not_mix() {
        let mut lines = lines();
        assert_eq!(lines.feed(0, b"hel"), b"");
        assert_eq!(lines.feed(1, b"up\r\nlogin: "), b"db  | up\n");
        assert_eq!(lines.feed(0, b"lo\r\n"), b"web | hello\n");
        assert_eq!(lines.feed(1, b"root\r\n# "), b"db  | login: root\n");
        assert_eq!(lines.feed(0, b"x\n\ny"), b"web | x\nweb | \n");
        assert_eq!(lines.finish(), b"web | y\ndb  | # \n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn a_prompt_continues_on_its_line() {
        let mut lines = lines();
        lines.feed(1, b"login: ");
        assert!(!lines.has_prompt(0) && lines.has_prompt(1));
        assert_eq!(lines.prompt(1), b"db  | login: ");
        assert!(!lines.has_prompt(1));
        assert_eq!(lines.feed(1, b"ro"), b"");
        assert_eq!(lines.prompt(1), b"ro");
        assert_eq!(lines.feed(1, b"ot\r\n"), b"ot\n");
    }

    #[test]
    fn a_line_that_another_vm_interrupts_is_repeated_as_a_whole() {
        let mut lines = lines();
        lines.feed(1, b"log");
        assert_eq!(lines.prompt(1), b"db  | log");
        assert_eq!(lines.feed(0, b"x\n"), b"\nweb | x\n");
        assert_eq!(lines.feed(1, b"in: root\n"), b"db  | login: root\n");
    }

    #[test]
    fn a_line_without_an_end_does_not_take_all_memory() {
        let mut lines = lines();
        let written: usize = (0..100).map(|_| lines.feed(0, &[b'x'; 4096]).len()).sum();
        assert!(written > 5 * LONGEST && lines.partial[0].len() < LONGEST);
    }
}
