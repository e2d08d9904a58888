//! Snapshots on their way between Stile and a file: the steps of each, one command at a time.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::mem;
use std::path::PathBuf;

use stile_wire::{Action, Command, Scope};

use super::copying::Copying;
use super::next::{Next, Window};
use super::work::WorkMeter;
use crate::control::protocol::{Clock, Reply, Work};
use crate::control::server::ClientId;
use crate::guest::Guest;
use crate::snapshot::{self, Reader, Section, Writer};

/// Bytes of a package that Stile takes at once.
const CHUNK: usize = 16 << 10;

/// A snapshot on its way.
#[derive(Debug)]
pub struct Transfer {
    /// The client that asked for it.
    pub client: ClientId,
    /// The tag of its commands.
    pub tag: u32,
    /// The file, if it is being written.
    pub file: Option<PathBuf>,
    /// The client has disconnected.
    pub abandoned: bool,
    /// Stile's work for the request at hand.
    pub work: WorkMeter,
    /// Its direction and progress.
    pub steps: Steps,
}

/// The steps of a transfer.
#[derive(Debug)]
pub enum Steps {
    /// From Stile.
    Saving(Box<Saving<BufWriter<File>>>),
    /// From Stile, while the VM runs.
    Copying(Box<Copying<BufWriter<File>>>),
    /// To Stile.
    Restoring(Box<Restoring<BufReader<File>>>),
}

impl Transfer {
    /// Whether it waits for the client, and not for Stile.
    pub fn is_idle(&self) -> bool {
        match &self.steps {
            Steps::Saving(_) => false,
            Steps::Copying(copying) => copying.is_idle(),
            Steps::Restoring(restoring) => restoring.is_waiting(),
        }
    }
}

/// A snapshot that is being saved.
#[derive(Debug)]
pub struct Saving<W> {
    tag: u32,
    vm: u8,
    window: u64,
    writer: Option<Writer<W>>,
    /// The state is saved.
    memory: bool,
    /// RAM's first byte.
    start: u64,
    /// End of the RAM that is saved, and RAM's end.
    ram: (u64, u64),
}

impl<W: Write> Saving<W> {
    /// A snapshot of VM number `vm`, of which the description is written. `ram`: its RAM's first byte, and the first after.
    pub fn new(tag: u32, vm: u8, writer: Writer<W>, ram: (u64, u64)) -> Self {
        Self { tag, vm, window: 0, writer: Some(writer), memory: false, start: ram.0, ram }
    }

    /// Bytes of RAM that were passed, and all of them.
    pub fn progress(&self) -> (u64, u64) {
        let (at, end) = self.ram;
        (at.saturating_sub(self.start), end.saturating_sub(self.start))
    }

    /// Stile has opened the window.
    pub fn opened(&mut self, address: u64) -> Next {
        self.window = address;
        Next::Send(Command::SaveState { tag: self.tag, vm: self.vm, part: 0 })
    }

    /// A part is in the window. Calls `complete` with the file after the last.
    ///
    /// # Errors
    /// It can't be written.
    pub fn saved(
        &mut self,
        (length, next): (u32, Option<u64>),
        window: &impl Window,
        complete: impl FnOnce(W) -> io::Result<()>,
    ) -> io::Result<Next> {
        let part = window.part(self.window, length)?;
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::InvalidData)?;
        let (tag, vm) = (self.tag, self.vm);
        match (self.memory, next) {
            (false, next) => {
                if !part.is_empty() {
                    writer.state(&part)?;
                }
                self.memory = next.is_none();
                if let Some(part) = next {
                    return Ok(Next::Send(Command::SaveState { tag, vm, part: part as u16 }));
                }
                return Ok(Next::Send(Command::SaveMemory { tag, vm, from: 0, scope: Scope::All }));
            }
            (true, _) if part.is_empty() => {}
            (true, _) => writer.piece(&part)?,
        }
        if let Some(from) = next {
            self.ram.0 = from;
            return Ok(Next::Send(Command::SaveMemory { tag, vm, from, scope: Scope::All }));
        }
        let writer = self.writer.take().ok_or(io::ErrorKind::InvalidData)?;
        complete(writer.finish()?)?;
        Ok(Next::Complete(Reply::Done))
    }
}

/// The step of a restoration that was not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Uploading,
    Creating,
    Loading,
    /// There are no more sections yet.
    Waiting,
    Ending,
    Resuming,
}

/// A snapshot that is being restored.
#[derive(Debug)]
pub struct Restoring<R> {
    /// The VM's number.
    pub vm: u8,
    tag: u32,
    window: u64,
    reader: Reader<R>,
    clock: Clock,
    /// Number of the file's sections, if it still grows.
    sections: Option<u32>,
    phase: Phase,
    part: u16,
    length: u32,
    /// Checksum of the package.
    crc: u32,
    /// Bytes of the package that Stile has.
    uploaded: u32,
    /// Pieces of the memory that Stile has.
    pieces: u32,
}

impl<R: Read> Restoring<R> {
    /// A snapshot that becomes VM number `vm`.
    pub fn new(tag: u32, vm: u8, reader: Reader<R>, clock: Clock, sections: Option<u32>) -> Self {
        let crc = stile_snapshot::section::package_checksum(&reader.package);
        Self { vm, tag, window: 0, reader, clock, sections, phase: Phase::Opening, part: 0, length: 0, crc, uploaded: 0, pieces: 0 }
    }

    /// Bytes that the machine has taken, of [`snapshot::Summary::size`].
    pub fn progress(&self) -> u64 {
        snapshot::size(self.uploaded as usize, self.pieces)
    }

    /// Whether it waits for more sections.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// There are more sections, of a file that it waited for.
    ///
    /// # Errors
    /// As [`Restoring::done`].
    pub fn go_on(&mut self, sections: Option<u32>, window: &impl Window) -> Result<Next, snapshot::Error> {
        self.sections = sections;
        self.phase = Phase::Loading;
        self.load(window)
    }

    /// The VM.
    pub fn guest(&self) -> &Guest {
        &self.reader.guest
    }

    /// Its package, which is needed only as long as the VM is being created.
    pub fn package(&self) -> &[u8] {
        &self.reader.package
    }

    /// Stile has opened the window.
    pub fn opened(&mut self, address: u64) -> Next {
        self.window = address;
        self.phase = Phase::Uploading;
        let size = self.reader.package.len() as u32;
        Next::Send(Command::Upload { tag: self.tag, vm: self.vm, size, memory: self.reader.memory() })
    }

    /// Stile has `next` bytes of the package.
    ///
    /// # Errors
    /// The window can't be written.
    pub fn uploaded(&mut self, next: u32, window: &impl Window) -> io::Result<Next> {
        let tag = self.tag;
        self.uploaded = next;
        let rest = self.reader.package.get(next as usize..).unwrap_or(&[]);
        if rest.is_empty() {
            self.phase = Phase::Creating;
            // Stile creates a piece of the VM for each of these.
            return Ok(Next::Send(Command::Restore { tag, crc: self.crc }));
        }
        let chunk = &rest[..rest.len().min(CHUNK)];
        window.write(self.window, chunk)?;
        Ok(Next::Send(Command::UploadWindow { tag, offset: next, length: chunk.len() as u32 }))
    }

    /// Whether an answer would be that the VM is created.
    pub fn is_creating(&self) -> bool {
        self.phase == Phase::Creating
    }

    /// Stile has carried out a command without another answer.
    ///
    /// # Errors
    /// The file can't be read, or the window can't be written.
    pub fn done(&mut self, window: &impl Window) -> Result<Next, snapshot::Error> {
        match self.phase {
            Phase::Opening | Phase::Uploading | Phase::Creating | Phase::Loading | Phase::Waiting => {
                self.phase = Phase::Loading;
                self.load(window)
            }
            // The restoration would have been reported.
            Phase::Ending => Ok(Next::Complete(Reply::Refused { message: "the VM is gone".into() })),
            Phase::Resuming => Ok(Next::Complete(Reply::Loaded(Work::default()))),
        }
    }

    /// Stile has taken `done` entries of a piece, or a part of the state, or completed the VM.
    ///
    /// # Errors
    /// As [`Restoring::done`].
    pub fn restored(&mut self, done: u32, all: bool, window: &impl Window) -> Result<Next, snapshot::Error> {
        if self.phase == Phase::Ending {
            self.phase = Phase::Resuming;
            return Ok(Next::Send(Command::Control { tag: self.tag, vm: self.vm, action: Action::Resume }));
        }
        if all {
            // A part of the state has no length.
            self.pieces += u32::from(mem::take(&mut self.length) != 0);
            return self.load(window);
        }
        let Self { tag, vm, length, .. } = *self;
        Ok(Next::Send(Command::RestoreMemory { tag, vm, from: done, length }))
    }

    /// Moves the next section into the window.
    fn load(&mut self, window: &impl Window) -> Result<Next, snapshot::Error> {
        let Self { tag, vm, .. } = *self;
        if self.sections.is_some_and(|sections| self.reader.position() >= sections) {
            self.phase = Phase::Waiting;
            return Ok(Next::Wait(Reply::Loaded(Work::default())));
        }
        let command = match self.reader.next_section()? {
            Some(Section::State(state)) => {
                window.write(self.window, &state)?;
                let part = self.part;
                self.part += 1;
                Command::RestoreState { tag, vm, part, length: state.len() as u32 }
            }
            Some(Section::Piece(piece)) => {
                window.write(self.window, &piece)?;
                self.length = piece.len() as u32;
                Command::RestoreMemory { tag, vm, from: 0, length: self.length }
            }
            None => {
                self.phase = Phase::Ending;
                Command::RestoreEnd { tag, vm, advance: self.clock == Clock::Real }
            }
        };
        Ok(Next::Send(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what is written.
    struct Sink;

    impl Window for Sink {
        fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_restoration_progresses_to_the_size_of_the_snapshot() {
        let bytes = snapshot::example("web", 4);
        let size = snapshot::verify(&bytes[..]).unwrap().size;
        let mut restoring = Restoring::new(1, 0, Reader::new(&bytes[..]).unwrap(), Clock::Real, None);
        let mut next = restoring.opened(0x4000);
        loop {
            assert!(restoring.progress() <= size, "{} of {size}", restoring.progress());
            next = match next {
                Next::Send(Command::Upload { .. }) => restoring.uploaded(0, &Sink).unwrap(),
                Next::Send(Command::UploadWindow { offset, length, .. }) => restoring.uploaded(offset + length, &Sink).unwrap(),
                Next::Send(Command::Restore { .. }) => restoring.done(&Sink).unwrap(),
                Next::Send(Command::RestoreEnd { .. }) => break,
                // Parts of the state, and a piece that is taken in two steps.
                Next::Send(Command::RestoreMemory { from: 0, .. }) => restoring.restored(1, false, &Sink).unwrap(),
                Next::Send(_) => restoring.restored(0, true, &Sink).unwrap(),
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(restoring.progress(), size);
    }
}
