//! A virtio console (Virtio 1.2, section 5.3) without input, whose output goes to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use libc::c_long;
use virtio_queue::{DescriptorChain, Error, Queue};
use vm_memory::GuestMemoryMmap;

use crate::server::{Backend, Progress, use_buffers};

/// Size of the file at which it begins anew, in bytes: a client can't fill the disk.
pub const LIMIT: u64 = 16 << 20;

/// Bytes of a buffer that are written at once; the rest of it follows.
const PIECE: usize = 4 << 10;

/// A console's output.
pub struct Log {
    /// `None` if there is none: output is lost.
    file: Option<File>,
    size: u64,
    has_failed: bool,
}

impl Log {
    /// Opens a file, behind whose content the output goes.
    ///
    /// # Errors
    /// It can't be made or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { file: Some(file), size, has_failed: false })
    }

    /// A console whose output is lost.
    pub const fn lost() -> Self {
        Self { file: None, size: 0, has_failed: false }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.size + bytes.len() as u64 > LIMIT {
            file.set_len(0)?;
            self.size = 0;
        }
        file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Writes a buffer's content. What can't be written is lost: the client does not wait for room on a disk.
    fn take(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) {
        let Ok(mut reader) = chain.reader(memory) else { return };
        let mut bytes = [0; PIECE];
        // Longer than the file is none: it would be overwritten at once.
        let mut left = reader.available_bytes().min(LIMIT as usize);
        while left != 0 {
            let piece = &mut bytes[..left.min(PIECE)];
            if reader.read_exact(piece).is_err() {
                return;
            }
            left -= piece.len();
            if let Err(error) = self.write(piece) {
                if !std::mem::replace(&mut self.has_failed, true) {
                    eprintln!("stile-devices: output of a console can't be written, and is lost: {error}");
                }
                return;
            }
        }
    }
}

impl Backend for Log {
    /// Input, of which there is none, and output.
    const QUEUE_SIZES: &'static [u16] = &[64, 64];

    const SYSTEM_CALLS: &'static [c_long] = &[libc::SYS_ftruncate];

    fn features(&self) -> u64 {
        0
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        Vec::new()
    }

    fn start(&mut self, _: &GuestMemoryMmap, _: u64, _: &[Queue]) -> Result<(), Error> {
        Ok(())
    }

    fn client_ended(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let [_, sent] = queues else { return Err(Error::QueueNotReady) };
        let Progress { interrupt, more } = use_buffers(memory, sent, |chain| {
            self.take(memory, chain);
            0
        })?;
        Ok(Progress { interrupt: interrupt << 1, more })
    }
}
