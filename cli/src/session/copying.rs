//! A VM on its way to another machine, into a file that grows while the VM runs: the steps, one command at a time.

use std::io::{self, Write};

use stile_snapshot::pages::entries;
use stile_wire::{Command, Scope};

use super::next::{Next, Window};
use super::sent::Sent;
use crate::control::protocol::{Copied, CopyStep, Reply, Work};
use crate::snapshot::Writer;

/// A VM that is being copied.
#[derive(Debug)]
pub struct Copying<W> {
    tag: u32,
    vm: u8,
    /// Address of the window, from Stile.
    window: u64,
    /// None once the file is complete.
    writer: Option<Writer<W>>,
    phase: Phase,
    /// Pages of the next round.
    scope: Scope,
    /// Address of the command at hand.
    at: u64,
    /// Pages written in this step, and those that were read.
    pages: u64,
    read: u64,
    sent: Sent,
}

/// The kind of the outstanding command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No command: a step has ended.
    Idle,
    /// The window is being opened.
    Opening,
    /// Pages that were written are being collected.
    Collecting,
    /// A round of pages is being saved while the VM runs.
    Round,
    /// The state of the paused VM is being saved.
    State,
    /// The remaining pages of the paused VM are being saved.
    Rest,
}

impl<W: Write> Copying<W> {
    /// A copy of VM number `vm`, of which the description is written.
    pub fn new(tag: u32, vm: u8, writer: Writer<W>) -> Self {
        Self {
            tag,
            vm,
            window: 0,
            writer: Some(writer),
            phase: Phase::Opening,
            scope: Scope::First,
            at: 0,
            pages: 0,
            read: 0,
            sent: Sent::default(),
        }
    }

    /// Whether no command is outstanding.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Returns the number of pages that the step at hand has read so far.
    pub const fn progress(&self) -> u64 {
        self.read
    }

    /// Handles Stile's answer that the window is open at `address`.
    pub fn opened(&mut self, address: u64) -> Next {
        self.window = address;
        self.begin(CopyStep::Collect)
    }

    /// Begins a step; no command may be outstanding.
    pub fn begin(&mut self, step: CopyStep) -> Next {
        let (tag, vm) = (self.tag, self.vm);
        (self.pages, self.read, self.at) = (0, 0, 0);
        self.phase = match step {
            CopyStep::Collect => Phase::Collecting,
            CopyStep::Round => Phase::Round,
            CopyStep::End => Phase::State,
        };
        match step {
            CopyStep::End => Next::Send(Command::SaveState { tag, vm, part: 0 }),
            CopyStep::Collect | CopyStep::Round => self.command(),
        }
    }

    /// The command for the address at hand.
    fn command(&self) -> Next {
        let (tag, vm, from) = (self.tag, self.vm, self.at);
        Next::Send(match self.phase {
            Phase::Collecting => Command::Collect { tag, vm, from },
            Phase::Rest => Command::SaveMemory { tag, vm, from, scope: Scope::Rest },
            _ => Command::SaveMemory { tag, vm, from, scope: self.scope },
        })
    }

    /// Handles Stile's answer to a command: the bytes in the window, and where the next command begins. Calls `complete`
    /// with the file after the last one.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn saved(
        &mut self,
        (length, next): (u32, Option<u64>),
        window: &impl Window,
        complete: impl FnOnce(W) -> io::Result<()>,
    ) -> io::Result<Next> {
        if self.phase == Phase::Collecting {
            return self.go_on(next, complete);
        }
        let part = window.part(self.window, length)?;
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::InvalidData)?;
        if self.phase == Phase::State {
            if !part.is_empty() {
                writer.state(&part)?;
            }
            if let Some(part) = next {
                return Ok(Next::Send(Command::SaveState { tag: self.tag, vm: self.vm, part: part as u16 }));
            }
            self.phase = Phase::Rest;
            return Ok(self.command());
        }
        let (pieces, pages) = self.sent.reduce(&part);
        pieces.iter().try_for_each(|piece| writer.piece(piece))?;
        self.pages += pages;
        self.read += entries(&part[..], part.len()).count() as u64;
        self.go_on(next, complete)
    }

    fn go_on(&mut self, next: Option<u64>, complete: impl FnOnce(W) -> io::Result<()>) -> io::Result<Next> {
        if let Some(next) = next {
            self.at = next;
            return Ok(self.command());
        }
        match self.phase {
            Phase::Round => self.scope = Scope::Changed,
            Phase::Rest => {
                let writer = self.writer.take().ok_or(io::ErrorKind::InvalidData)?;
                complete(writer.finish()?)?;
                return Ok(Next::Complete(self.copied(None)));
            }
            _ => {}
        }
        self.phase = Phase::Idle;
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::InvalidData)?;
        let sections = writer.flush()?;
        Ok(Next::Wait(self.copied(Some(sections))))
    }

    fn copied(&self, sections: Option<u32>) -> Reply {
        Reply::Copied(Copied { sections, pages: self.pages, read: self.read, work: Work::default() })
    }
}
