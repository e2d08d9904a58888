//! The user's view: consoles on standard output, everything of Stile on standard error.

use std::io::{self, Write};

use super::lines::Lines;
use super::tail::Tail;
use super::terminal::with_returns;
use crate::out;

/// Number of lines of a console repeated when switching to it.
const AGAIN: usize = 20;

/// The presentation of consoles.
#[derive(Debug)]
enum Mode {
    /// A person at a terminal (in raw mode): one console at a time.
    Terminal {
        /// The shown console.
        shown: usize,
    },
    /// A pipe or a file, and one VM: its output is copied unchanged.
    Exact,
    /// A pipe or a file, several VMs: lines with names before them.
    Named {
        /// The lines that are not finished.
        lines: Lines,
        /// Whether a person types to the first VM and waits for its prompts.
        prompts: bool,
    },
}

/// The two streams and their state.
pub struct View<'a> {
    out: Box<dyn Write + 'a>,
    notes: Box<dyn Write + 'a>,
    mode: Mode,
    /// The unfinished last line of Stile's log.
    log: Vec<u8>,
    quiet: bool,
    /// Whether notes may be dimmed: they go to a terminal.
    colour: bool,
    /// Whether the last line of notes is transient: see [`View::status`].
    passing: bool,
    /// Notes deferred until the end of a console's line, if both are written to the same pipe or file.
    waiting: Option<Waiting>,
}

/// Notes that wait.
#[derive(Debug, Default)]
struct Waiting {
    notes: Vec<u8>,
    /// Whether the console's last line is unfinished.
    within_line: bool,
}

/// Maximum number of bytes of deferred notes: a console may never end its line.
const MOST_WAITING: usize = 64 << 10;

impl<'a> View<'a> {
    /// A view for a user at a terminal in raw mode.
    pub fn terminal(out: impl Write + 'a, notes: impl Write + 'a, quiet: bool) -> Self {
        Self::new(out, notes, Mode::Terminal { shown: 0 }, quiet, true)
    }

    /// A view for pipes and files.
    pub fn plain(out: impl Write + 'a, notes: impl Write + 'a, names: &[String], quiet: bool, colour: bool) -> Self {
        let lines = || Lines::new(names.iter().map(String::as_str));
        let mode = if names.len() > 1 { Mode::Named { lines: lines(), prompts: false } } else { Mode::Exact };
        Self::new(out, notes, mode, quiet, colour)
    }

    /// A view for a user at a keyboard whose output is redirected: shows prompts, which are unfinished lines.
    pub fn with_prompts(mut self) -> Self {
        if let Mode::Named { prompts, .. } = &mut self.mode {
            *prompts = true;
        }
        self
    }

    fn new(out: impl Write + 'a, notes: impl Write + 'a, mode: Mode, quiet: bool, colour: bool) -> Self {
        Self { out: Box::new(out), notes: Box::new(notes), mode, log: Vec::new(), quiet, colour, passing: false, waiting: None }
    }

    /// A view with both streams in the same pipe or file: notes do not split the lines of a console.
    pub fn sharing(mut self, shared: bool) -> Self {
        if shared && matches!(self.mode, Mode::Exact) {
            self.waiting = Some(Waiting::default());
        }
        self
    }

    /// Writes the notes that wait.
    fn end_waiting(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            let _ = self.notes.write_all(&std::mem::take(&mut waiting.notes));
            let _ = self.notes.flush();
        }
    }

    /// Shows a transient line, replaced by the next output, on a terminal that shows no console.
    pub fn status(&mut self, text: &str) {
        if !self.colour || matches!(self.mode, Mode::Terminal { .. }) {
            return;
        }
        let width = out::terminal_width(&io::stderr()).unwrap_or(80);
        let text: String = text.chars().take(width.saturating_sub(1)).collect();
        let _ = write!(self.notes, "\r\x1b[K\x1b[2m{text}\x1b[0m");
        let _ = self.notes.flush();
        self.passing = true;
    }

    /// Removes the passing line.
    fn clear_status(&mut self) {
        if std::mem::take(&mut self.passing) {
            let _ = self.notes.write_all(b"\r\x1b[K");
            let _ = self.notes.flush();
        }
    }

    /// Adds the console of a VM that was created later.
    pub fn add(&mut self, name: &str) {
        if let Mode::Named { lines, .. } = &mut self.mode {
            lines.add(name);
        }
    }

    /// Shows output of the console with index `vm`; `bare`: its lines end with LF alone.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn console(&mut self, vm: usize, bytes: &[u8], bare: bool) -> io::Result<()> {
        self.clear_status();
        match &mut self.mode {
            Mode::Terminal { shown } if *shown != vm => return Ok(()),
            Mode::Terminal { .. } if bare => self.out.write_all(&with_returns(bytes))?,
            Mode::Terminal { .. } => self.out.write_all(bytes)?,
            // Bytes of one VM, exactly. Consoles of VMs that were created later: `stile attach`, and the logs.
            Mode::Exact if vm > 0 => return Ok(()),
            Mode::Exact => {
                let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                let (lines, rest) = bytes.split_at(end);
                self.out.write_all(lines)?;
                if let Some(waiting) = self.waiting.as_mut().filter(|_| end > 0) {
                    waiting.within_line = false;
                    self.out.flush()?;
                    self.end_waiting();
                }
                self.out.write_all(rest)?;
                if let Some(waiting) = self.waiting.as_mut().filter(|_| !rest.is_empty()) {
                    waiting.within_line = true;
                }
            }
            Mode::Named { lines, .. } => self.out.write_all(&lines.feed(vm, bytes))?,
        }
        self.out.flush()
    }

    /// Ends the unfinished line of a VM that is off or restarts.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn end_line(&mut self, vm: usize) -> io::Result<()> {
        let Mode::Named { lines, .. } = &mut self.mode else { return Ok(()) };
        self.out.write_all(&lines.end(vm))?;
        self.out.flush()
    }

    /// Whether [`View::idle`] has output. Never without a keyboard user, so that output does not depend on timing.
    pub fn has_prompt(&self) -> bool {
        matches!(&self.mode, Mode::Named { lines, prompts: true } if lines.has_prompt(self.focus()))
    }

    /// Shows a prompt; called after a pause in the consoles' output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn idle(&mut self) -> io::Result<()> {
        let focus = self.focus();
        if let Mode::Named { lines, prompts: true } = &mut self.mode {
            self.out.write_all(&lines.prompt(focus))?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Text of Stile's log.
    pub fn log(&mut self, bytes: &[u8]) {
        self.log.extend_from_slice(bytes);
        let Some(end) = self.log.iter().rposition(|&byte| byte == b'\n') else { return };
        let rest = self.log.split_off(end + 1);
        let text = std::mem::replace(&mut self.log, rest);
        if self.quiet {
            return;
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        for line in text.lines() {
            self.write_note(line.trim_end_matches('\r'), true);
        }
    }

    /// Shows a message, possibly of several lines.
    pub fn note(&mut self, text: &str) {
        for line in text.lines() {
            self.write_note(&format!("stile: {line}"), false);
        }
    }

    /// Shows text without a prefix, such as a table.
    pub fn text(&mut self, text: &str) {
        let width = if self.colour { out::terminal_width(&io::stderr()) } else { None };
        let fitted = width.map(|width| stile_config::fit(text, width));
        for line in fitted.as_deref().unwrap_or(text).lines() {
            self.write_note(line, false);
        }
    }

    /// The console that receives input.
    pub fn focus(&self) -> usize {
        match self.mode {
            Mode::Terminal { shown } => shown,
            Mode::Exact | Mode::Named { .. } => 0,
        }
    }

    /// Switches to another console: shows its name, and the end of its output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn switch(&mut self, vm: usize, names: &[String], tail: &Tail, bare: bool) -> io::Result<()> {
        let Mode::Terminal { shown } = &mut self.mode else { return Ok(()) };
        let Some(name) = names.get(vm) else { return Ok(()) };
        *shown = vm;
        write!(
            self.out,
            "\x1b[0m\r\n\x1b[7m stile: console of {name}, VM {} of {}; Ctrl-a ? lists the keys \x1b[0m\r\n",
            vm + 1,
            names.len()
        )?;
        let again = tail.raw(AGAIN);
        self.out.write_all(&if bare { with_returns(&again) } else { again })?;
        self.out.flush()
    }

    /// Writes the rest, and restores the terminal's state: a guest may have hidden the cursor or chosen
    /// colours.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.clear_status();
        let left = std::mem::take(&mut self.log);
        if !left.is_empty() && !self.quiet {
            let text = String::from_utf8_lossy(&left).into_owned();
            self.write_note(&text, true);
        }
        match &mut self.mode {
            Mode::Terminal { .. } => self.out.write_all(b"\x1b[0m\x1b[?25h\r\n"),
            Mode::Named { lines, .. } => self.out.write_all(&lines.finish()),
            Mode::Exact => Ok(()),
        }?;
        self.out.flush()?;
        // The console's last line stays exact; the notes begin on a new line.
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.within_line) {
            waiting.within_line = false;
            waiting.notes.insert(0, b'\n');
            if waiting.notes.len() == 1 {
                return Ok(());
            }
        }
        self.end_waiting();
        Ok(())
    }

    /// Writes a note. Errors are ignored: a closed standard error must not end a run.
    fn write_note(&mut self, line: &str, dim: bool) {
        self.clear_status();
        let (before, after) = if dim && self.colour && out::may_colour() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let end = if matches!(self.mode, Mode::Terminal { .. }) { "\r\n" } else { "\n" };
        let text = format!("{before}{line}{after}{end}");
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.within_line && waiting.notes.len() < MOST_WAITING) {
            waiting.notes.extend_from_slice(text.as_bytes());
            return;
        }
        self.end_waiting();
        let _ = self.notes.write_all(text.as_bytes());
        let _ = self.notes.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["one".into(), "two".into()]
    }

    #[test]
    fn lines_of_a_command_begin_at_the_left() {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut view = View::terminal(&mut out, &mut notes, false);
        view.console(0, b"one\ntwo", true).unwrap();
        let mut tail = Tail::default();
        tail.push(b"three\n");
        view.switch(1, &names(), &tail, true).unwrap();
        drop(view);
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("one\r\ntwo") && out.ends_with("three\r\n"), "{out:?}");
    }

    #[test]
    fn a_terminal_shows_one_console_at_a_time() {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut view = View::terminal(&mut out, &mut notes, false);
        view.console(0, b"first\r\n", false).unwrap();
        view.console(1, b"hidden\r\n", false).unwrap();
        let mut tail = Tail::default();
        tail.push(b"hidden\r\n# ");
        view.switch(1, &names(), &tail, false).unwrap();
        assert_eq!(view.focus(), 1);
        view.console(1, b"now", false).unwrap();
        view.note("a note");
        drop(view);
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("first\r\n\x1b[0m"), "{out:?}");
        assert!(out.contains("console of two, VM 2 of 2"), "{out:?}");
        assert!(out.ends_with("hidden\r\n# now"), "{out:?}");
        assert_eq!(notes, b"stile: a note\r\n");
    }

    #[test]
    fn a_pause_within_a_line_does_not_split_it() {
        let show = |prompts: bool| {
            let (mut out, mut notes) = (Vec::new(), Vec::new());
            let mut view = View::plain(&mut out, &mut notes, &names(), false, false);
            if prompts {
                view = view.with_prompts();
            }
            for (vm, bytes) in [(0, "PASS a"), (1, "PASS x\n"), (0, "nd b\n"), (1, "PASS"), (0, "log"), (0, "in: "), (1, " y\n")] {
                view.console(vm, bytes.as_bytes(), false).unwrap();
                // On a busy machine there is a pause after each piece.
                assert!(prompts || !view.has_prompt());
                view.idle().unwrap();
            }
            view.end_line(0).unwrap();
            view.finish().unwrap();
            drop(view);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(false), "two | PASS x\none | PASS and b\ntwo | PASS y\none | login: \n");
        let for_a_person = show(true);
        for line in show(false).lines() {
            assert!(for_a_person.lines().any(|shown| shown == line), "{line} in {for_a_person}");
        }
    }

    #[test]
    fn a_note_is_deferred_to_the_end_of_a_consoles_line() {
        let both = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        struct Same(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);
        impl Write for Same {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.borrow_mut().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut view = View::plain(Same(both.clone()), Same(both.clone()), &["one".into()], false, false).sharing(true);
        view.log(b"Stile is up\n");
        view.console(0, b"PASS a\nPA", false).unwrap();
        view.log(b"vm0 was reset\n");
        view.console(0, b"SS", false).unwrap();
        view.console(0, b" b\nend", false).unwrap();
        view.note("a note");
        view.finish().unwrap();
        view.note("the end");
        drop(view);
        let text = String::from_utf8(both.take()).unwrap();
        let mut view = View::plain(Same(both.clone()), Same(both.clone()), &["one".into()], false, false).sharing(true);
        view.console(0, b"end", false).unwrap();
        view.finish().unwrap();
        assert_eq!(*both.borrow(), b"end", "exact without a following note");
        view.note("a note");
        drop(view);
        assert_eq!(both.take(), b"end\nstile: a note\n");
        assert_eq!(text, "Stile is up\nPASS a\nPASS b\nvm0 was reset\nend\nstile: a note\nstile: the end\n");
    }

    #[test]
    fn a_transient_line_is_for_terminals_only() {
        let show = |colour: bool| {
            let (mut out, mut notes) = (Vec::new(), Vec::new());
            let mut view = View::plain(&mut out, &mut notes, &["one".into()], false, colour);
            view.status("one boots: [    0.0] Linux");
            view.console(0, b"hello\n", false).unwrap();
            view.finish().unwrap();
            drop(view);
            (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
        };
        assert_eq!(show(false), ("hello\n".into(), String::new()));
        let (out, notes) = show(true);
        assert_eq!(out, "hello\n");
        assert!(notes.contains("one boots") && notes.ends_with("\r\x1b[K"), "{notes:?}");
    }

    #[test]
    fn a_pipe_gets_exact_bytes_or_prefixed_lines() {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut view = View::plain(&mut out, &mut notes, &["one".into()], true, false);
        view.console(0, b"\x00a\r\n", false).unwrap();
        view.log(b"not shown\n");
        view.finish().unwrap();
        drop(view);
        assert_eq!((out.as_slice(), notes.as_slice()), (b"\x00a\r\n".as_slice(), b"".as_slice()));

        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut view = View::plain(&mut out, &mut notes, &names(), false, false);
        view.console(1, b"a\r\nb", false).unwrap();
        view.log(b"Stile is up\nand");
        view.finish().unwrap();
        drop(view);
        assert_eq!(out, b"two | a\ntwo | b\n");
        assert_eq!(notes, b"Stile is up\nand\n");
    }
}
