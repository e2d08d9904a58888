//! A VM's console: its identity and state.

use super::System;
use super::line::Leaf;
use super::marks::{Filter, Show};
use super::tail::Tail;

/// A VM's console.
pub struct Console {
    /// Index of the console's line, and number of the VM on that line.
    pub line: usize,
    /// The VM, from 0.
    pub vm: u8,
    /// Its VM was destroyed; it has no name any more.
    pub gone: bool,
    system: Option<System>,
    /// Takes the system's marks out.
    pub filter: Option<Filter>,
    /// Its latest output.
    pub tail: Tail,
    /// The terminal size in columns and rows known to its shell.
    size: (u16, u16),
}

impl Console {
    /// The console of a VM that has not started.
    pub fn new(leaf: &Leaf<'_>) -> Self {
        let (line, vm, system) = (leaf.line, leaf.vm, leaf.guest.system.clone());
        let mut console = Self { line, vm, gone: false, system, filter: None, tail: Tail::default(), size: (0, 0) };
        console.start();
        console
    }

    /// The VM starts, for the first time or again.
    pub fn start(&mut self) {
        self.size = self.system.as_ref().map_or((0, 0), |system| system.size);
        self.filter =
            self.system.as_ref().map(|system| Filter::new(system.marks.clone(), if system.command { Show::Command } else { Show::All }));
    }

    /// The input that reports a changed terminal size to its shell, if that is at a prompt. The shell's echo
    /// is hidden.
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

    /// Whether input is read: a booting system would lose it.
    pub fn is_ready(&self) -> bool {
        self.filter.as_ref().is_none_or(Filter::has_begun)
    }
}
