//! A driver's request to a disk (Virtio 1.2, section 5.2.6): a copy of its descriptors, as the client can change these at any time.

use std::ops::Range;

use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK};
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Maximum number of descriptors of a disk's queue.
pub const QUEUE_SIZE: u16 = 256;

/// Maximum number of a request's descriptors: of the segments that a driver is told of, the header and the status.
const MAX_PARTS: usize = QUEUE_SIZE as usize;

/// Size of the header in bytes.
const HEADER: usize = 16;

/// The first part of a request.
pub struct Header {
    /// Type of the request.
    pub kind: u32,
    /// First sector.
    pub sector: u64,
}

/// A request that can't be carried out: its status.
#[derive(Debug, Clone, Copy)]
pub struct Refused(pub u8);

impl Refused {
    /// An input or output error.
    pub const IO: Self = Self(VIRTIO_BLK_S_IOERR as u8);
}

impl From<std::io::Error> for Refused {
    fn from(_: std::io::Error) -> Self {
        Self::IO
    }
}

impl From<vm_memory::GuestMemoryError> for Refused {
    fn from(_: vm_memory::GuestMemoryError) -> Self {
        Self::IO
    }
}

/// A piece of a request's memory.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    address: GuestAddress,
    length: u32,
    is_writable: bool,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its first descriptor.
    pub head: u16,
    /// Its parts, among those of all requests.
    parts: Range<usize>,
    /// Numbers of bytes that the device may read and write.
    readable: u64,
    writable: u64,
    /// Place of the status: the last byte that the device may write.
    status: Option<GuestAddress>,
    /// It has more parts than [`MAX_PARTS`], of which only the first ones were copied.
    is_too_long: bool,
}

impl Request {
    /// Copies a request's descriptors behind `parts`.
    pub fn new(chain: DescriptorChain<&GuestMemoryMmap>, parts: &mut Vec<Part>) -> Self {
        let (head, first) = (chain.head_index(), parts.len());
        let mut request = Self { head, parts: first..first, readable: 0, writable: 0, status: None, is_too_long: false };
        for descriptor in chain {
            let part = Part { address: descriptor.addr(), length: descriptor.len(), is_writable: descriptor.is_write_only() };
            if part.is_writable {
                request.writable += u64::from(part.length);
                if let Some(before) = part.length.checked_sub(1) {
                    request.status = part.address.0.checked_add(before.into()).map(GuestAddress);
                }
            } else {
                request.readable += u64::from(part.length);
            }
            if parts.len() - first < MAX_PARTS {
                parts.push(part);
            } else {
                request.is_too_long = true;
            }
        }
        request.parts.end = parts.len();
        request
    }

    /// The header.
    ///
    /// # Errors
    /// The request has none, or too many parts.
    pub fn header(&self, memory: &GuestMemoryMmap, parts: &[Part]) -> Result<Header, Refused> {
        let mut bytes = [0; HEADER];
        if self.is_too_long || self.readable < HEADER as u64 {
            return Err(Refused::IO);
        }
        self.copy(parts, false, 0, HEADER, |address, part| memory.read_slice(&mut bytes[part], address))?;
        let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
        Ok(Header { kind: u32::from_le_bytes([a, b, c, d]), sector: u64::from_le_bytes(sector) })
    }

    /// Number of bytes of data that the device may write, without the status.
    pub const fn room(&self) -> u64 {
        self.writable.saturating_sub(1)
    }

    /// Number of bytes of data that the device may read, without the header.
    pub const fn length(&self) -> u64 {
        self.readable.saturating_sub(HEADER as u64)
    }

    /// Copies the request's data from byte `skip` on into `data`.
    ///
    /// # Errors
    /// A part is not in the client's memory, or the request has less data.
    pub fn read(&self, memory: &GuestMemoryMmap, parts: &[Part], skip: u64, data: &mut [u8]) -> Result<(), Refused> {
        self.copy(parts, false, HEADER as u64 + skip, data.len(), |address, part| memory.read_slice(&mut data[part], address))
    }

    /// Copies `data` into the client's buffers, from byte `skip` on.
    ///
    /// # Errors
    /// A buffer is not in the client's memory, or there is less room.
    pub fn write(&self, memory: &GuestMemoryMmap, parts: &[Part], skip: u64, data: &[u8]) -> Result<(), Refused> {
        self.copy(parts, true, skip, data.len(), |address, part| memory.write_slice(&data[part], address))
    }

    /// Calls `copy` for each piece of the `length` bytes behind the first `skip` of the readable or writable parts.
    fn copy(
        &self,
        parts: &[Part],
        is_writable: bool,
        mut skip: u64,
        length: usize,
        mut copy: impl FnMut(GuestAddress, Range<usize>) -> Result<(), vm_memory::GuestMemoryError>,
    ) -> Result<(), Refused> {
        let mut done = 0;
        for part in parts[self.parts.clone()].iter().filter(|part| part.is_writable == is_writable) {
            if done == length {
                break;
            }
            let Some(rest) = u64::from(part.length).checked_sub(skip) else {
                skip -= u64::from(part.length);
                continue;
            };
            let count = (length - done).min(usize::try_from(rest).map_err(|_| Refused::IO)?);
            let address = part.address.0.checked_add(skip).ok_or(Refused::IO)?;
            copy(GuestAddress(address), done..done + count)?;
            (skip, done) = (0, done + count);
        }
        if done == length { Ok(()) } else { Err(Refused::IO) }
    }

    /// Answers the request, whose result is the number of bytes of data that were written. Returns the number of bytes that were written into
    /// the client's buffers, which is 0 without room for a status.
    pub fn answer(&self, memory: &GuestMemoryMmap, result: Result<u32, Refused>) -> u32 {
        let Some(status) = self.status else { return 0 };
        let (code, written) = match result {
            Ok(written) => (VIRTIO_BLK_S_OK as u8, written),
            Err(Refused(code)) => (code, 0),
        };
        if memory.write_obj(code, status).is_ok() { written.saturating_add(1) } else { 0 }
    }
}
