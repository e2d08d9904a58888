//! Messages of the vhost-user protocol to a back end (QEMU's documentation, "Vhost-user Protocol").
//!
//! By hand: the crate `vhost` brings generators of random numbers and of identifiers for other parts of the protocol.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, sendmsg, shutdown};

/// The feature of devices whose back ends have protocol features.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// Each request is acknowledged.
const F_REPLY_ACK: u64 = 1 << 3;
/// The back end has the configuration space.
const F_CONFIG: u64 = 1 << 9;

/// Files of a message, at most.
const MAX_FILES: usize = 2;
/// Longest content of a reply, in bytes.
const MAX_REPLY: u32 = 4096;

/// Flags of a message: the protocol's version, a reply, and a request that asks for one.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Request {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemoryTable = 5,
    SetQueueSize = 8,
    SetQueueAddresses = 9,
    SetQueueBase = 10,
    GetQueueBase = 11,
    SetKick = 12,
    SetCall = 13,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    EnableQueue = 18,
    GetConfiguration = 24,
}

/// Memory that a back end maps.
pub struct Region<'a> {
    /// Address for descriptors, and size in bytes.
    pub address: u64,
    pub size: u64,
    /// Address in this process, which names it in [`QueueAddresses`].
    pub here: u64,
    /// The file, from its begin on.
    pub file: BorrowedFd<'a>,
}

/// Addresses of a queue's parts in this process.
pub struct QueueAddresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// A connection to a back end.
pub struct Connection {
    socket: File,
    is_acknowledged: bool,
}

impl Connection {
    /// Begins, and negotiates the protocol's features. Also returns the device's features. `patience`: time that the back end has for each
    /// reply.
    ///
    /// # Errors
    /// The back end ends, does not reply, or breaks the protocol, which applies to all methods.
    pub fn new(socket: UnixStream, patience: Duration) -> io::Result<(Self, u64)> {
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let mut connection = Self { socket: OwnedFd::from(socket).into(), is_acknowledged: false };
        connection.set(Request::SetOwner, &[], &[])?;
        let features = number(&connection.get(Request::GetFeatures, &[])?)?;
        if features & F_PROTOCOL_FEATURES != 0 {
            let protocol = number(&connection.get(Request::GetProtocolFeatures, &[])?)? & (F_REPLY_ACK | F_CONFIG);
            connection.set(Request::SetProtocolFeatures, &[protocol], &[])?;
            connection.is_acknowledged = protocol & F_REPLY_ACK != 0;
        }
        Ok((connection, features))
    }

    /// Sets the features that the driver accepts.
    pub fn set_features(&self, features: u64) -> io::Result<()> {
        self.set(Request::SetFeatures, &[features], &[])
    }

    /// The first `size` bytes of configuration space.
    pub fn configuration(&self, size: u32) -> io::Result<Vec<u8>> {
        let request = [[0, size, 0].map(u32::to_le_bytes).concat(), vec![0; size as usize]].concat();
        let reply = self.get_bytes(Request::GetConfiguration, &request)?;
        let content = reply.get(12..).filter(|content| content.len() == size as usize);
        content.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Has the back end map memory: at most [`MAX_FILES`] regions.
    pub fn set_memory(&self, regions: &[Region<'_>]) -> io::Result<()> {
        let words: Vec<u64> = regions.iter().flat_map(|region| [region.address, region.size, region.here, 0]).collect();
        let files: Vec<_> = regions.iter().map(|region| region.file).collect();
        self.set(Request::SetMemoryTable, &[&[regions.len() as u64], &words[..]].concat(), &files)
    }

    /// Starts a queue of `size` descriptors with empty rings.
    pub fn start_queue(&self, queue: u32, size: u16, at: &QueueAddresses, kick: BorrowedFd<'_>, call: BorrowedFd<'_>) -> io::Result<()> {
        let number = u64::from(queue);
        // No flags, and no log.
        let addresses = [number, at.descriptors, at.used, at.available, 0];
        self.set(Request::SetQueueSize, &[pair(queue, size.into())], &[])?;
        self.set(Request::SetQueueAddresses, &addresses, &[])?;
        self.set(Request::SetQueueBase, &[pair(queue, 0)], &[])?;
        self.set(Request::SetCall, &[number], &[call])?;
        self.set(Request::SetKick, &[number], &[kick])?;
        self.set(Request::EnableQueue, &[pair(queue, 1)], &[])
    }

    /// Stops a queue.
    pub fn stop_queue(&self, queue: u32) -> io::Result<()> {
        self.get(Request::GetQueueBase, &[pair(queue, 0)]).map(drop)
    }

    /// Ends the connection, which shows at [`Self::file`].
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// The file that is readable, and at its end, when the connection is.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a request that has no reply, and waits until it is acknowledged.
    fn set(&self, request: Request, words: &[u64], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let flags = if self.is_acknowledged { NEED_REPLY } else { 0 };
        self.send(request, flags, &bytes(words), files)?;
        if !self.is_acknowledged || number(&self.receive(request)?)? == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("the back end refused request {}", request as u32)))
    }

    fn get(&self, request: Request, words: &[u64]) -> io::Result<Vec<u8>> {
        self.get_bytes(request, &bytes(words))
    }

    fn get_bytes(&self, request: Request, content: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request, 0, content, &[])?;
        self.receive(request)
    }

    fn send(&self, request: Request, flags: u32, content: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let header = [request as u32, VERSION | flags, content.len() as u32].map(u32::to_le_bytes).concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(&header), IoSlice::new(content)], &mut ancillary, SendFlags::NOSIGNAL)?;
        // The socket has room: the back end waits for requests.
        if sent == header.len() + content.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn receive(&self, request: Request) -> io::Result<Vec<u8>> {
        let mut header = [0; 12];
        (&self.socket).read_exact(&mut header)?;
        let [a, b, c, d, e, f, g, h, size @ ..] = header;
        let (to, flags, size) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]), u32::from_le_bytes(size));
        if to != request as u32 || flags & REPLY == 0 || size > MAX_REPLY {
            return Err(io::Error::other(format!("the back end breaks the protocol at request {}", request as u32)));
        }
        let mut content = vec![0; size as usize];
        (&self.socket).read_exact(&mut content)?;
        Ok(content)
    }
}

/// Two numbers in one word.
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn number(content: &[u8]) -> io::Result<u64> {
    content.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that hangs keeps its socket open: only a time limit ends the wait for its reply.
    #[test]
    fn a_back_end_that_does_not_reply_is_an_error() {
        let (socket, _back_end) = UnixStream::pair().expect("sockets");
        let result = Connection::new(socket, Duration::from_millis(50));
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    }
}
