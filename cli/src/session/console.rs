//! One VM's console: what is known of who writes to it.

use super::System;
use super::line::Leaf;
use super::marks::{Filter, Show};
use super::tail::Tail;

/// One VM's console.
pub struct Console {
    /// The index of the line that has it, and the VM's number there.
    pub line: usize,
    /// As above.
    pub vm: u8,
    system: Option<System>,
    /// Takes the system's marks out.
    pub filter: Option<Filter>,
    /// What it said last.
    pub tail: Tail,
    /// The terminal's columns and rows that its shell knows.
    size: (u16, u16),
}

impl Console {
    /// That of a VM which has not started.
    pub fn new(leaf: &Leaf<'_>) -> Self {
        let (line, vm, system) = (leaf.line, leaf.vm, leaf.guest.system.clone());
        let mut console = Self { line, vm, system, filter: None, tail: Tail::default(), size: (0, 0) };
        console.start();
        console
    }

    /// The VM starts, for the first time or again.
    pub fn start(&mut self) {
        self.size = self.system.as_ref().map_or((0, 0), |system| system.size);
        self.filter =
            self.system.as_ref().map(|system| Filter::new(system.marks.clone(), if system.command { Show::Command } else { Show::All }));
    }

    /// The input that tells its shell the terminal's size, if that has changed and the shell waits for a command. The shell's answer is not
    /// shown.
    pub fn resize(&mut self, size: (u16, u16)) -> Option<String> {
        let filter = self.filter.as_mut().filter(|filter| filter.is_at_prompt())?;
        let (columns, rows) = size;
        if size == self.size || columns == 0 || rows == 0 {
            return None;
        }
        self.size = size;
        filter.hide();
        Some(format!("stty rows {rows} cols {columns}\r"))
    }

    /// Whether its system has a shell.
    pub fn has_shell(&self) -> bool {
        self.system.as_ref().is_some_and(|system| !system.command)
    }

    /// Whether its system runs a command.
    pub fn has_command(&self) -> bool {
        self.system.as_ref().is_some_and(|system| system.command)
    }

    /// Whether input reaches the one who reads it: a system that is starting would lose it.
    pub fn is_ready(&self) -> bool {
        self.filter.as_ref().is_none_or(Filter::has_begun)
    }
}
