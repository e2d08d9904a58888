//! Several consoles on one stream: whole lines, each with its VM's name before it.

/// Turns consoles' output into prefixed lines.
#[derive(Debug)]
pub struct Lines {
    prefixes: Vec<String>,
    /// What each console has said since its last line ended.
    partial: Vec<Vec<u8>>,
    /// The console whose unfinished line was written last: nothing else may follow it on that line.
    open: Option<usize>,
}

impl Lines {
    /// For consoles with these names.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let width = names.clone().map(str::len).max().unwrap_or(0);
        let prefixes: Vec<String> = names.map(|name| format!("{name:<width$} | ")).collect();
        let partial = vec![Vec::new(); prefixes.len()];
        Self { prefixes, partial, open: None }
    }

    /// Takes output of the console with index `vm`, and returns what is to be written.
    pub fn feed(&mut self, vm: usize, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(partial) = self.partial.get_mut(vm) else { return out };
        partial.extend_from_slice(bytes);
        let Some(end) = partial.iter().rposition(|&byte| byte == b'\n') else { return out };
        let rest = partial.split_off(end + 1);
        let text = std::mem::replace(partial, rest);
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            self.write(vm, line, &mut out);
        }
        out
    }

    /// Returns the unfinished lines, to be written when nothing has come for a while: prompts have no line end.
    pub fn flush(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for vm in 0..self.partial.len() {
            let text = std::mem::take(&mut self.partial[vm]);
            if !text.is_empty() {
                self.write(vm, &text, &mut out);
            }
        }
        out
    }

    /// Whether there are unfinished lines.
    pub fn has_partial(&self) -> bool {
        self.partial.iter().any(|text| !text.is_empty())
    }

    /// Returns what ends the line that is open, for when something else is to be written.
    pub fn close(&mut self) -> &'static [u8] {
        if self.open.take().is_some() { b"\n" } else { b"" }
    }

    fn write(&mut self, vm: usize, line: &[u8], out: &mut Vec<u8>) {
        if self.open != Some(vm) {
            out.extend_from_slice(self.close());
            out.extend_from_slice(self.prefixes[vm].as_bytes());
        }
        match line.strip_suffix(b"\n") {
            Some(line) => {
                out.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
                out.push(b'\n');
                self.open = None;
            }
            None => {
                out.extend_from_slice(line);
                self.open = Some(vm);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_consoles_do_not_mix() {
        let mut lines = Lines::new(["web", "db"].into_iter());
        assert_eq!(lines.feed(0, b"hel"), b"");
        assert_eq!(lines.feed(1, b"up\r\nlogin: "), b"db  | up\n");
        assert_eq!(lines.feed(0, b"lo\r\n"), b"web | hello\n");
        assert!(lines.has_partial());
        assert_eq!(lines.flush(), b"db  | login: ");
        assert_eq!(lines.feed(1, b"root\r\n"), b"root\n");
        assert_eq!(lines.feed(1, b"# "), b"");
        assert_eq!(lines.flush(), b"db  | # ");
        assert_eq!(lines.feed(0, b"x\n"), b"\nweb | x\n");
        assert_eq!(lines.close(), b"");
    }
}
