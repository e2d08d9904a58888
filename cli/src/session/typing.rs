//! Keyboard input, to the guests and to this program.

use std::io;

use stile_wire::Command;

use super::console::Console;
use super::keys::{Action, HELP};
use super::outcome::{End, Fate};
use super::{Session, line};

/// End of transmission: a terminal's encoding of the end of input.
const EOT: u8 = 0x04;

impl Session<'_> {
    /// Processes bytes from the terminal. Returns how the run ends if they end it.
    pub(super) fn keys(&mut self, bytes: &[u8]) -> io::Result<Option<End>> {
        let count = self.names.len();
        for action in self.keys.feed(bytes) {
            let focus = self.view.focus();
            let to = match action {
                Action::Leave => return Ok(Some(End::Left)),
                Action::Send(bytes) => {
                    self.send(focus, &bytes);
                    continue;
                }
                Action::List => {
                    self.list();
                    continue;
                }
                Action::Next => (focus + 1) % count,
                Action::Previous => (focus + count - 1) % count,
                Action::Show(vm) => vm,
            };
            if let Some(console) = self.consoles.get(to) {
                self.view.switch(to, &self.names, &console.tail, console.has_command())?;
            }
        }
        Ok(None)
    }

    fn list(&mut self) {
        let mut text = String::new();
        for (vm, name) in self.names.iter().enumerate() {
            let shown = if vm == self.view.focus() { '*' } else { ' ' };
            let fate = match self.fate(vm) {
                Fate::Waiting => "has not started",
                Fate::Running => "runs",
                Fate::Paused => "is paused",
                Fate::Off | Fate::Exited(_) | Fate::Reset => "is off",
                Fate::Crashed(_) => "crashed",
                Fate::Destroyed => "is destroyed",
            };
            text += &format!("{shown} {} {name} {fate}\n", vm + 1);
        }
        // The guest's cursor may be within a line.
        self.view.text("\n");
        self.view.note(&text);
        self.view.note(HELP);
    }

    /// Passes piped input to the first VM when that is ready.
    pub(super) fn pass_on(&mut self) {
        let Some(console) = self.consoles.first() else { return };
        if !console.is_ready() {
            return;
        }
        let shell = console.has_shell();
        let bytes = std::mem::take(&mut self.waiting);
        self.send(0, &bytes);
        // A shell exits at the end of its input, as in a pipe; other guests are not notified.
        if std::mem::take(&mut self.waiting_end) && shell {
            self.send(0, &[EOT]);
        }
    }

    /// Reports a changed terminal size to a shell at a prompt. A serial line has no other means.
    pub(super) fn fit(&mut self, console: usize) {
        if !self.interactive {
            return;
        }
        let Ok(size) = crossterm::terminal::size() else { return };
        if let Some(input) = self.consoles.get_mut(console).and_then(|console| console.resize(size)) {
            self.write_line(console, input.as_bytes());
        }
    }

    pub(super) fn send(&mut self, console: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(filter) = self.consoles.get_mut(console).and_then(|console| console.filter.as_mut()) {
            filter.typed();
        }
        self.write_line(console, bytes);
    }

    fn write_line(&mut self, console: usize, bytes: &[u8]) {
        let Some(&Console { line, vm, gone, .. }) = self.consoles.get(console) else { return };
        if gone {
            // Another VM may have its number by now.
            return;
        }
        let line = line::to_console(&mut self.lines, line, vm, bytes);
        // Fails only if the emulator has ended, which the closed line reports, too.
        let _ = self.inputs.line.send(line);
    }

    /// Sends a command to Stile.
    pub(super) fn command(&mut self, command: &Command) {
        self.command_to(0, command);
    }

    /// Sends a command to the Stile of a line.
    pub(super) fn command_to(&mut self, line: usize, command: &Command) {
        let line = line::command(&mut self.lines, line, command);
        // As in `send`.
        let _ = self.inputs.line.send(line);
    }
}
