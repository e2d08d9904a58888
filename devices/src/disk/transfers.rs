//! Transfers between a buffer and a file, several at once, by Linux's asynchronous I/O (io_submit(2)).
//!
//! It takes fewer rights than io_uring: its requests are reads and writes of open files, which a process may make without it, too.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use libc::c_long;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

use crate::server::BATCH;

/// System calls of transfers, beside those of [`sandbox`](crate::sandbox).
pub const SYSTEM_CALLS: [c_long; 3] = [libc::SYS_io_submit, libc::SYS_io_getevents, libc::SYS_io_destroy];

/// Size of the buffer in bytes.
pub const BUFFER: usize = 1 << 20;

/// Alignment of a transfer's part of the buffer, for access past the page cache: at least that of any disk's driver.
const ALIGNMENT: usize = 4096;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// A transfer.
#[derive(Debug)]
struct Transfer {
    direction: Direction,
    /// First byte in the file.
    at: u64,
    /// Bytes of the buffer.
    bytes: Range<usize>,
    /// Number of bytes that were transferred, or a negative error number; 0 until the transfer is carried out.
    result: i64,
}

/// Transfers between parts of a buffer and a file.
pub struct Transfers {
    /// Dropped first, which waits for transfers under way: they access the buffer.
    context: IoContext,
    /// Becomes readable when the last transfer is done.
    last_done: OwnedFd,
    buffer: Box<[u8]>,
    /// The first aligned byte of the buffer.
    start: usize,
    transfers: Vec<Transfer>,
}

impl Transfers {
    /// Allocates the buffer, without transfers.
    ///
    /// # Errors
    /// The kernel has no asynchronous I/O, or no memory.
    pub fn new() -> io::Result<Self> {
        let buffer = vec![0; BUFFER + ALIGNMENT].into_boxed_slice();
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let context = IoContext::new(BATCH as u32)?;
        Ok(Self { context, last_done: eventfd(0, EventfdFlags::CLOEXEC)?, buffer, start, transfers: Vec::with_capacity(BATCH) })
    }

    /// Whether there is room for a transfer of `length` bytes.
    pub fn has_room(&self, length: usize) -> bool {
        self.transfers.len() < BATCH && self.next() + length <= BUFFER
    }

    /// First free aligned byte of the buffer.
    fn next(&self) -> usize {
        self.transfers.last().map_or(0, |last| last.bytes.end.next_multiple_of(ALIGNMENT))
    }

    /// Adds a transfer for which there is room ([`Self::has_room`]) at byte `at` of the file. Returns its number.
    pub fn add(&mut self, direction: Direction, at: u64, length: usize) -> usize {
        let first = self.next();
        self.transfers.push(Transfer { direction, at, bytes: first..first + length, result: 0 });
        self.transfers.len() - 1
    }

    /// The bytes of a transfer.
    pub fn bytes(&mut self, number: usize) -> &mut [u8] {
        let Range { start, end } = self.transfers[number].bytes;
        &mut self.buffer[self.start..][start..end]
    }

    /// Whether a transfer was carried out completely.
    pub fn is_done(&self, number: usize) -> bool {
        let transfer = &self.transfers[number];
        usize::try_from(transfer.result) == Ok(transfer.bytes.len())
    }

    /// The writes: their first bytes in the file, and their lengths.
    pub fn writes(&self) -> impl Iterator<Item = (u64, usize)> {
        let writes = self.transfers.iter().filter(|transfer| transfer.direction == Direction::Write);
        writes.map(|transfer| (transfer.at, transfer.bytes.len()))
    }

    /// Forgets the transfer that was added last.
    pub fn remove_last(&mut self) {
        self.transfers.pop();
    }

    /// Forgets all transfers.
    pub fn clear(&mut self) {
        self.transfers.clear();
    }

    /// Carries out all transfers.
    pub fn carry_out(&mut self, file: &File) {
        // A single transfer takes fewer system calls without io_submit.
        if self.transfers.len() > 1 {
            self.carry_out_at_once(file);
        }
        for number in 0..self.transfers.len() {
            if !self.is_done(number) {
                self.complete(number, file);
            }
        }
    }

    /// Carries out the rest of a transfer, which failed or was not submitted.
    fn complete(&mut self, number: usize, file: &File) {
        let Transfer { direction, at, ref bytes, .. } = self.transfers[number];
        let part = &mut self.buffer[self.start..][bytes.clone()];
        let result = match direction {
            Direction::Read => file.read_exact_at(part, at),
            Direction::Write => file.write_all_at(part, at),
        };
        self.transfers[number].result = if result.is_ok() { part.len() as i64 } else { -1 };
    }

    /// Submits transfers, and waits for those that the kernel accepts.
    fn carry_out_at_once(&mut self, file: &File) {
        let base = self.buffer[self.start..].as_mut_ptr() as u64;
        let last = self.transfers.len() - 1;
        let mut blocks = [IoControlBlock::default(); BATCH];
        for (number, (block, transfer)) in blocks.iter_mut().zip(&self.transfers).enumerate() {
            let operation = match transfer.direction {
                Direction::Read => IOCB_CMD_PREAD,
                Direction::Write => IOCB_CMD_PWRITE,
            };
            *block = IoControlBlock {
                aio_data: number as u64,
                aio_lio_opcode: operation as u16,
                aio_fildes: file.as_raw_fd() as u32,
                aio_buf: base + transfer.bytes.start as u64,
                aio_nbytes: transfer.bytes.len() as u64,
                aio_offset: transfer.at as i64,
                ..IoControlBlock::default()
            };
        }
        // Linux 6.1 wakes a process in io_getevents at each event, even if it waits for several: this one waits for the last transfer.
        blocks[last].aio_flags = IOCB_FLAG_RESFD;
        blocks[last].aio_resfd = self.last_done.as_raw_fd() as u32;
        let mut blocks: Vec<&mut IoControlBlock> = blocks.iter_mut().take(last + 1).collect();
        let (mut next, mut submitted, mut waits) = (0, 0, false);
        while next <= last {
            match self.context.submit(&blocks[next..]) {
                Ok(accepted) if accepted != 0 => {
                    submitted += accepted;
                    next += accepted;
                    waits = next > last;
                }
                // The next one was refused.
                _ => next += 1,
            }
        }
        if waits {
            while read(&self.last_done, &mut [0; 8]) == Err(Errno::INTR) {}
        }
        blocks.clear();
        self.collect(submitted);
    }

    /// Waits for the `submitted` transfers, and stores their results.
    fn collect(&mut self, mut submitted: usize) {
        let mut events = [IoEvent::default(); BATCH];
        while submitted != 0 {
            match self.context.get_events(submitted as c_long, &mut events[..submitted], None) {
                Ok(count) => {
                    for event in &events[..count] {
                        if let Some(transfer) = self.transfers.get_mut(event.data as usize) {
                            transfer.result = event.res;
                        }
                    }
                    submitted -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The buffer may not be used again. The end of the process waits for its transfers, and another one starts.
                Err(error) => panic!("transfers that were submitted can't be waited for: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn transfers_are_carried_out_at_once() {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..64 * 512u32).map(|n| (n / 512) as u8).collect();
        file.write_all(&content).expect("content");
        let mut transfers = Transfers::new().expect("transfers");
        for count in [1, 2, BATCH] {
            for sector in 0..count {
                assert!(transfers.has_room(1024));
                let direction = if sector % 2 == 0 { Direction::Read } else { Direction::Write };
                let number = transfers.add(direction, 512 * sector as u64, 512);
                if direction == Direction::Write {
                    transfers.bytes(number).fill(100 + number as u8);
                }
            }
            assert_eq!(transfers.writes().count(), count / 2);
            transfers.carry_out(&file);
            for number in 0..count {
                assert!(transfers.is_done(number), "{number}");
                let expected = if number % 2 == 0 { number } else { 100 + number };
                assert_eq!(transfers.bytes(number), [expected as u8; 512]);
                let mut sector = [0; 512];
                file.read_exact_at(&mut sector, 512 * number as u64).expect("the file's content");
                assert_eq!(sector, [expected as u8; 512]);
            }
            transfers.clear();
        }
    }

    #[test]
    fn unreadable_transfers_are_not_done() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(3 * 512).expect("a size");
        let mut transfers = Transfers::new().expect("transfers");
        for (at, length) in [(0, 1024), (1024, 1024), (1 << 40, 512)] {
            transfers.add(Direction::Read, at, length);
        }
        transfers.carry_out(&file);
        assert_eq!([0, 1, 2].map(|number| transfers.is_done(number)), [true, false, false]);
    }

    #[test]
    fn room_is_limited() {
        let mut transfers = Transfers::new().expect("transfers");
        assert!(transfers.has_room(BUFFER) && !transfers.has_room(BUFFER + 1));
        transfers.add(Direction::Read, 0, BUFFER - ALIGNMENT - 512);
        assert!(transfers.has_room(ALIGNMENT) && !transfers.has_room(ALIGNMENT + 1));
        transfers.clear();
        for _ in 0..BATCH {
            transfers.add(Direction::Read, 0, 512);
        }
        assert!(!transfers.has_room(512));
    }
}
