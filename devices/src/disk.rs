//! A virtio block device (Virtio 1.2, section 5.2) with the content of a file or block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use libc::c_long;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_queue::{DescriptorChain, Error, Queue, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use crate::server::{Backend, Progress, use_buffers};
use crate::vhost_user::Kind;

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

/// Maximum number of descriptors of a disk's queue.
pub const QUEUE_SIZE: u16 = 256;

/// Bytes that are copied at once between the client's buffers and the file.
const CHUNK: usize = 128 << 10;

/// Identification that a client's driver reads.
const ID: &[u8] = b"stile-devices";

/// A disk.
pub struct Disk {
    file: File,
    sectors: u64,
    read_only: bool,
    /// Each write is on stable storage before it is completed: the driver does not flush (section 5.2.6.2).
    write_through: bool,
    /// Copies of the client's data: it can change its buffers at any time.
    buffer: Box<[u8]>,
}

/// The first part of a request. Fields are in the byte order of Virtio.
struct Header {
    kind: u32,
    sector: u64,
}

/// A request that can't be carried out: its status.
struct Refused(u8);

impl Refused {
    const IO: Self = Self(VIRTIO_BLK_S_IOERR as u8);
}

impl From<io::Error> for Refused {
    fn from(_: io::Error) -> Self {
        Self::IO
    }
}

impl Disk {
    /// Opens a disk, whose size is that of the file without an incomplete sector at its end.
    ///
    /// # Errors
    /// The file can't be opened for what the disk allows.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(!read_only).open(path)?;
        // A block device's metadata does not have its size.
        let sectors = file.seek(SeekFrom::End(0))? / SECTOR;
        Ok(Self { file, sectors, read_only, write_through: true, buffer: vec![0; CHUNK].into() })
    }

    /// Writes everything to stable storage.
    ///
    /// # Errors
    /// The file's.
    fn flush(&self) -> io::Result<()> {
        if self.read_only { Ok(()) } else { self.file.sync_data() }
    }

    fn carry_out(&mut self, reader: &mut Reader<'_>, writer: &mut Writer<'_>) -> Result<(), Refused> {
        let header = Header::read(reader)?;
        match header.kind {
            VIRTIO_BLK_T_IN => self.read(header.sector, writer),
            VIRTIO_BLK_T_OUT => self.write(header.sector, reader),
            VIRTIO_BLK_T_FLUSH => Ok(self.flush()?),
            VIRTIO_BLK_T_GET_ID => {
                let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
                id[..ID.len()].copy_from_slice(ID);
                let length = writer.available_bytes().min(id.len());
                Ok(writer.write_all(&id[..length])?)
            }
            _ => Err(Refused(VIRTIO_BLK_S_UNSUPP as u8)),
        }
    }

    /// The place of `length` bytes at a sector in the file.
    fn place(&self, sector: u64, length: usize) -> Result<u64, Refused> {
        let sectors = length as u64 / SECTOR;
        let fits = sector.checked_add(sectors).is_some_and(|end| end <= self.sectors);
        let is_whole = (length as u64).is_multiple_of(SECTOR);
        if fits && is_whole { Ok(sector * SECTOR) } else { Err(Refused::IO) }
    }

    fn read(&mut self, sector: u64, writer: &mut Writer<'_>) -> Result<(), Refused> {
        let mut at = self.place(sector, writer.available_bytes())?;
        while writer.available_bytes() != 0 {
            let length = writer.available_bytes().min(CHUNK);
            let chunk = &mut self.buffer[..length];
            self.file.read_exact_at(chunk, at)?;
            writer.write_all(chunk)?;
            at += length as u64;
        }
        Ok(())
    }

    fn write(&mut self, sector: u64, reader: &mut Reader<'_>) -> Result<(), Refused> {
        let mut at = self.place(sector, reader.available_bytes())?;
        if self.read_only {
            return Err(Refused::IO);
        }
        while reader.available_bytes() != 0 {
            let length = reader.available_bytes().min(CHUNK);
            let chunk = &mut self.buffer[..length];
            reader.read_exact(chunk)?;
            self.file.write_all_at(chunk, at)?;
            at += length as u64;
        }
        if self.write_through {
            return Ok(self.file.sync_data()?);
        }
        let start = sector * SECTOR;
        Ok(self.write_back(start, at - start)?)
    }

    /// Has the kernel write a range of its cache to the file's device. A client outlives this VM and repeats no answered write, so an
    /// answered write must not be in this VM's memory alone. The write is not stable before the client flushes: the device may have a
    /// cache of its own, and a file system unwritten metadata.
    fn write_back(&self, start: u64, length: u64) -> io::Result<()> {
        const ALL: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // A length of 0 is one to the end of the file.
        if length == 0 {
            return Ok(());
        }
        let (file, start, length) = (c_long::from(self.file.as_raw_fd()), start as c_long, length as c_long);
        // SAFETY: the call takes numbers only, and accesses no memory of this process.
        let status = unsafe { libc::syscall(libc::SYS_sync_file_range, file, start, length, c_long::from(ALL)) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Answers a request, which `carry_out` carries out: it reads the request, and writes data. Returns the number of bytes that were written
/// into the client's buffers.
fn answer(
    memory: &GuestMemoryMmap,
    chain: DescriptorChain<&GuestMemoryMmap>,
    carry_out: impl FnOnce(&mut Reader<'_>, &mut Writer<'_>) -> Result<(), Refused>,
) -> u32 {
    // A chain without room for a status can't be answered.
    let Ok(mut data) = chain.clone().writer(memory) else { return 0 };
    let Some(before_status) = data.available_bytes().checked_sub(1) else { return 0 };
    let Ok(mut status) = data.split_at(before_status) else { return 0 };
    let result = chain.reader(memory).map_err(|_| Refused::IO);
    let result = result.and_then(|mut reader| carry_out(&mut reader, &mut data));
    let code = result.map_or_else(|Refused(code)| code, |()| VIRTIO_BLK_S_OK as u8);
    let written = u32::try_from(data.bytes_written()).unwrap_or(u32::MAX - 1);
    if status.write_all(&[code]).is_err() { written } else { written + 1 }
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

    const SYSTEM_CALLS: &'static [c_long] = &[libc::SYS_sync_file_range];

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
        use_buffers(memory, queue, |chain| answer(memory, chain, |reader, writer| self.carry_out(reader, writer)))
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
        use_buffers(memory, queue, |chain| answer(memory, chain, |_, _| Err(Refused::IO)))
    }
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> io::Result<Self> {
        let mut bytes = [0; 16];
        reader.read_exact(&mut bytes)?;
        let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
        Ok(Self { kind: u32::from_le_bytes([a, b, c, d]), sector: u64::from_le_bytes(sector) })
    }
}
