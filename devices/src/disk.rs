//! A virtio block device (Virtio 1.2, section 5.2) with the content of a file or block device.

mod request;
mod transfers;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use libc::c_long;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT,
};
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use crate::server::{BATCH, Backend, Progress, use_batch, use_buffers};
use crate::vhost_user::Kind;
pub use request::QUEUE_SIZE;
use request::{Part, Refused, Request};
use transfers::{BUFFER, Direction, Transfers};

/// Unit of addresses and sizes of a disk, in bytes.
pub const SECTOR: u64 = 512;

/// A disk that a back end serves.
pub const DISK: Kind = Kind {
    features: 1 << VIRTIO_BLK_F_SEG_MAX
        | 1 << VIRTIO_BLK_F_RO
        | 1 << VIRTIO_BLK_F_BLK_SIZE
        | 1 << VIRTIO_BLK_F_FLUSH
        | 1 << VIRTIO_BLK_F_TOPOLOGY
        | 1 << VIRTIO_BLK_F_DISCARD
        | 1 << VIRTIO_BLK_F_WRITE_ZEROES,
    // To the end of the limits of VIRTIO_BLK_T_WRITE_ZEROES.
    configuration: 60,
    has_sessions: false,
};

/// Identification that a client's driver reads.
const ID: &[u8] = b"stile-devices";

/// A disk.
pub struct Disk {
    file: File,
    /// Transfers bypass the page cache: those that are done have reached the disk.
    is_direct: bool,
    sectors: u64,
    read_only: bool,
    /// Each write is on stable storage before it is completed: the driver does not flush (section 5.2.6.2).
    write_through: bool,
    /// Transfers of requests that were taken, with copies of the client's data: it can change its buffers at any time.
    transfers: Transfers,
    /// Requests that were taken and not answered, in their order, and the parts of those of a batch.
    taken: Vec<(Request, State)>,
    parts: Vec<Part>,
}

/// Progress of a request.
enum State {
    /// Carried out or refused: the number of bytes of data that were written to the client.
    Done(Result<u32, Refused>),
    /// A read by the transfer with this number.
    Reading(usize),
    /// A write by the transfer with this number.
    Writing(usize),
}

impl Disk {
    /// Opens a disk, whose size is that of the file without an incomplete sector at its end.
    ///
    /// # Errors
    /// The file can't be opened for what the disk allows; the kernel has no asynchronous I/O.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        let (mut file, is_direct) = open(path, read_only)?;
        // A block device's metadata does not have its size.
        let sectors = file.seek(SeekFrom::End(0))? / SECTOR;
        let (transfers, taken) = (Transfers::new()?, Vec::with_capacity(BATCH));
        Ok(Self { file, is_direct, sectors, read_only, write_through: true, transfers, taken, parts: Vec::new() })
    }

    /// Writes everything to stable storage.
    ///
    /// # Errors
    /// The file's.
    fn flush(&self) -> io::Result<()> {
        if self.read_only { Ok(()) } else { self.file.sync_data() }
    }

    /// Takes a request. Its transfer is carried out together with those of others, by [`Self::finish`]. A flush, and a request of more than
    /// [`BUFFER`] bytes, are carried out at once, after the requests before them.
    fn take(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue, request: Request) -> Result<(), Error> {
        let state = match self.begin(memory, queue, &request)? {
            Ok(state) => state,
            Err(refused) => State::Done(Err(refused)),
        };
        self.taken.push((request, state));
        Ok(())
    }

    /// Begins a request: adds its transfer, or carries it out.
    fn begin(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue, request: &Request) -> Result<Result<State, Refused>, Error> {
        let header = match request.header(memory, &self.parts) {
            Ok(header) => header,
            Err(refused) => return Ok(Err(refused)),
        };
        let (direction, length) = match header.kind {
            VIRTIO_BLK_T_IN => (Direction::Read, request.room()),
            VIRTIO_BLK_T_OUT => (Direction::Write, request.length()),
            VIRTIO_BLK_T_FLUSH => {
                self.finish(memory, queue)?;
                return Ok(self.flush().map(|()| State::Done(Ok(0))).map_err(Refused::from));
            }
            VIRTIO_BLK_T_GET_ID => return Ok(self.identify(memory, request)),
            _ => return Ok(Err(Refused(VIRTIO_BLK_S_UNSUPP as u8))),
        };
        let (at, length) = match self.place(header.sector, length) {
            Ok(place) if direction == Direction::Read || !self.read_only => place,
            _ => return Ok(Err(Refused::IO)),
        };
        if length == 0 {
            return Ok(Ok(State::Done(Ok(0))));
        }
        if length > BUFFER {
            self.finish(memory, queue)?;
            return Ok(self.carry_out_in_parts(memory, request, direction, (at, length)));
        }
        if !self.transfers.has_room(length) {
            self.finish(memory, queue)?;
        }
        let number = self.transfers.add(direction, at, length);
        if direction == Direction::Read {
            return Ok(Ok(State::Reading(number)));
        }
        let copied = request.read(memory, &self.parts, 0, self.transfers.bytes(number));
        if copied.is_err() {
            self.transfers.remove_last();
        }
        Ok(copied.map(|()| State::Writing(number)))
    }

    /// Carries out VIRTIO_BLK_T_GET_ID.
    fn identify(&self, memory: &GuestMemoryMmap, request: &Request) -> Result<State, Refused> {
        let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
        id[..ID.len()].copy_from_slice(ID);
        let length = id.len().min(usize::try_from(request.room()).unwrap_or(usize::MAX));
        request.write(memory, &self.parts, 0, &id[..length])?;
        Ok(State::Done(Ok(length as u32)))
    }

    /// The place of `length` bytes at a sector in the file, and their number.
    fn place(&self, sector: u64, length: u64) -> Result<(u64, usize), Refused> {
        let fits = sector.checked_add(length / SECTOR).is_some_and(|end| end <= self.sectors);
        let length = usize::try_from(length).ok().filter(|length| fits && (*length as u64).is_multiple_of(SECTOR));
        length.map(|length| (sector * SECTOR, length)).ok_or(Refused::IO)
    }

    /// Carries out a request of more data than the buffer has room for.
    fn carry_out_in_parts(
        &mut self,
        memory: &GuestMemoryMmap,
        request: &Request,
        direction: Direction,
        (at, length): (u64, usize),
    ) -> Result<State, Refused> {
        for skip in (0..length).step_by(BUFFER) {
            let (count, skip) = ((length - skip).min(BUFFER), skip as u64);
            let number = self.transfers.add(direction, at + skip, count);
            let done = match direction {
                Direction::Write => {
                    let copied = request.read(memory, &self.parts, skip, self.transfers.bytes(number));
                    copied.and_then(|()| Ok(self.carry_out()?))
                }
                Direction::Read => {
                    let read = self.carry_out().map_err(Refused::from);
                    read.and_then(|()| request.write(memory, &self.parts, skip, self.transfers.bytes(number)))
                }
            };
            let done = if self.transfers.is_done(number) { done } else { Err(Refused::IO) };
            self.transfers.clear();
            done?;
        }
        let written = if direction == Direction::Read { u32::try_from(length).unwrap_or(u32::MAX) } else { 0 };
        Ok(State::Done(Ok(written)))
    }

    /// Carries out all transfers. Afterwards their writes have left this VM's page cache, since a client outlives this VM and repeats no
    /// answered write. Until the client flushes they are not stable: the device may have a cache of its own, and a file system unwritten
    /// metadata. If the driver does not flush, they are on stable storage.
    fn carry_out(&mut self) -> io::Result<()> {
        self.transfers.carry_out(&self.file);
        let mut writes = self.transfers.writes().peekable();
        if self.write_through && writes.peek().is_some() {
            return self.file.sync_data();
        }
        if self.is_direct { Ok(()) } else { writes.try_for_each(|(at, length)| self.write_back(at, length)) }
    }

    /// Has the kernel write a range of its cache to the file's device.
    fn write_back(&self, start: u64, length: usize) -> io::Result<()> {
        const ALL: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (file, start, length) = (c_long::from(self.file.as_raw_fd()), start as c_long, length as c_long);
        // SAFETY: the call takes numbers only, and accesses no memory of this process.
        let status = unsafe { libc::syscall(libc::SYS_sync_file_range, file, start, length, c_long::from(ALL)) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Carries out the transfers of all requests that were taken, and answers these in their order: the next server begins behind the last
    /// answer.
    fn finish(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<(), Error> {
        let carried_out = self.carry_out();
        for (request, state) in self.taken.drain(..) {
            let result = match state {
                State::Done(result) => result,
                State::Writing(number) if self.transfers.is_done(number) && carried_out.is_ok() => Ok(0),
                State::Reading(number) if self.transfers.is_done(number) => {
                    let data = self.transfers.bytes(number);
                    request.write(memory, &self.parts, 0, data).map(|()| data.len() as u32)
                }
                State::Writing(_) | State::Reading(_) => Err(Refused::IO),
            };
            queue.add_used(memory, request.head, request.answer(memory, result))?;
        }
        self.transfers.clear();
        Ok(())
    }

    /// Takes a batch of requests at most, and answers them. Returns their number.
    fn serve_batch(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<usize, Error> {
        for number in 0..BATCH {
            let Some(chain) = queue.iter(memory)?.next() else {
                self.finish(memory, queue)?;
                return Ok(number);
            };
            let request = Request::new(chain, &mut self.parts);
            self.take(memory, queue, request)?;
        }
        self.finish(memory, queue)?;
        Ok(BATCH)
    }
}

/// Opens a disk's file. Also returns whether its transfers bypass the page cache, as those of a block device with sectors of [`SECTOR`]
/// bytes do: the client has its own cache, and a read takes more instructions if the server's cache must first make room.
fn open(path: &Path, read_only: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only);
    let file = options.open(path)?;
    if file.metadata()?.file_type().is_block_device() && rustix::fs::ioctl_blksszget(&file)? == SECTOR as u32 {
        return Ok((options.custom_flags(libc::O_DIRECT).open(path)?, true));
    }
    Ok((file, false))
}

/// Features of a disk, beside those of queues.
const fn features(read_only: bool) -> u64 {
    let read_only = if read_only { 1 << VIRTIO_BLK_F_RO } else { 0 };
    1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE | 1 << VIRTIO_BLK_F_FLUSH | read_only
}

/// Maximum number of segments, and size of a block (section 5.2.4): a descriptor each is for a request's header and status.
const LIMITS: [(u64, u32); 2] = [(12, QUEUE_SIZE as u32 - 2), (20, SECTOR as u32)];

impl Backend for Disk {
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE];

    const SYSTEM_CALLS: &'static [c_long] =
        &[libc::SYS_sync_file_range, transfers::SYSTEM_CALLS[0], transfers::SYSTEM_CALLS[1], transfers::SYSTEM_CALLS[2]];

    fn features(&self) -> u64 {
        features(self.read_only)
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        [&[(0, self.sectors as u32), (4, (self.sectors >> 32) as u32)], &LIMITS[..]].concat()
    }

    fn start(&mut self, _: &GuestMemoryMmap, features: u64, _: &[Queue]) -> Result<(), Error> {
        self.write_through = features & 1 << VIRTIO_BLK_F_FLUSH == 0;
        Ok(())
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let [queue] = queues else { return Err(Error::QueueNotReady) };
        // A malformed queue may have ended the last batch early: its requests are dropped.
        self.taken.clear();
        self.transfers.clear();
        self.parts.clear();
        use_batch(memory, queue, |queue| self.serve_batch(memory, queue))
    }

    fn client_ended(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// A disk whose content can't be served: all requests fail. It has the size of the disk that was served before, or is empty.
pub struct FailedDisk {
    /// As of the disk that was served before: its driver may be running.
    pub read_only: bool,
}

impl Backend for FailedDisk {
    const QUEUE_SIZES: &'static [u16] = Disk::QUEUE_SIZES;

    fn features(&self) -> u64 {
        features(self.read_only)
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        LIMITS.into()
    }

    fn start(&mut self, _: &GuestMemoryMmap, _: u64, _: &[Queue]) -> Result<(), Error> {
        Ok(())
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let [queue] = queues else { return Err(Error::QueueNotReady) };
        use_buffers(memory, queue, |chain| Request::new(chain, &mut Vec::new()).answer(memory, Err(Refused::IO)))
    }
}
