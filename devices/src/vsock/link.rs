//! The way from the process of a client's socket device to that of another one's: a socket whose messages are packets.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::{fs::File, mem};

use rustix::event::epoll;

use super::connection::{Connection, LARGEST, Ports, Sent};
use super::packet::{CREDIT_REQUEST, HEADER, Header, REQUEST, RST, STREAM};

/// Message that ends all connections of the link: its sender knows none.
const ENDED: &[u8] = &[0];

/// Connections of two clients with each other, at most.
const CONNECTIONS: usize = 64;

/// A packet of the peer's.
pub enum Received {
    /// This one, with its payload's size in the buffer.
    Packet(Header, usize),
    /// All connections have ended.
    Ended,
}

/// A link to a peer.
pub struct Link {
    /// The peer's address.
    pub peer: u32,
    file: File,
    connections: BTreeMap<Ports, Connection>,
    /// Ports whose turn to send was last.
    last: Ports,
    /// Bytes of all connections that wait.
    waiting: usize,
    /// [`ENDED`] is to be sent.
    to_end: bool,
    interest: epoll::EventFlags,
}

impl Link {
    /// A link by a socket of messages that never blocks, for which `events` waits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(peer: u32, socket: OwnedFd, events: &OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let interest = epoll::EventFlags::empty();
        epoll::add(events, &socket, epoll::EventData::new_u64(0), interest)?;
        Ok(Self { peer, file: socket.into(), connections: BTreeMap::new(), last: (0, 0), waiting: 0, to_end: false, interest })
    }

    /// Adds a packet of the client's with the CID `cid`. Returns whether it was taken: if not, the client is to be told that there is no such
    /// connection. `most`: bytes that may wait
    /// for the peer.
    #[must_use]
    pub fn add(&mut self, header: &Header, payload: &[u8], most: usize) -> bool {
        let ports = (header.src_port, header.dst_port);
        if !self.connections.contains_key(&ports) {
            // Any first packet: an earlier process of this device may have had the connection, and its end is an answer to anything.
            if !self.has_room(header.op) {
                return false;
            }
            self.connections.insert(ports, Connection::default());
        }
        let Some(connection) = self.connections.get_mut(&ports) else { return false };
        if connection.is_ending() {
            return false;
        }
        if self.waiting + payload.len() > most {
            self.waiting -= connection.waiting();
            connection.reset();
            return false;
        }
        self.waiting += payload.len();
        connection.add(header, payload);
        true
    }

    /// Whether there is room for another connection. Those that the peer has not answered make room for a new one.
    fn has_room(&mut self, op: u16) -> bool {
        if self.connections.len() < CONNECTIONS {
            return true;
        }
        let unanswered = self.connections.iter().find(|(_, connection)| !connection.answered).map(|(ports, _)| *ports);
        let Some(ports) = unanswered.filter(|_| op == REQUEST) else { return false };
        self.forget(ports);
        true
    }

    /// Bytes that wait.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    fn forget(&mut self, ports: Ports) {
        if let Some(connection) = self.connections.remove(&ports) {
            self.waiting -= connection.waiting();
        }
    }

    /// Sends packets, a batch at most, each connection's in turn.
    pub fn send(&mut self, cid: u32, batch: usize) {
        if self.to_end {
            self.to_end = (&self.file).write(ENDED).is_err();
        }
        for _ in 0..batch {
            if self.to_end {
                return;
            }
            let Some(ports) = self.next() else { return };
            let Some(connection) = self.connections.get_mut(&ports) else { return };
            // Messages are sent as a whole.
            let send = |header: &Header, payload: &[u8]| {
                let header = header.bytes();
                let parts = [IoSlice::new(&header), IoSlice::new(payload)];
                (&self.file).write_vectored(&parts).is_ok()
            };
            match connection.send((cid, self.peer), ports, send) {
                None | Some(Sent::Nothing) => return,
                Some(Sent::Data(length)) => self.waiting -= length,
                Some(Sent::Last) => self.forget(ports),
            }
            self.last = ports;
        }
    }

    /// The next connection that has packets, behind the last one.
    fn next(&self) -> Option<Ports> {
        let has_packets = |(ports, connection): (&Ports, &Connection)| connection.has_packets().then_some(*ports);
        let behind = (std::ops::Bound::Excluded(self.last), std::ops::Bound::Unbounded);
        self.connections.range(behind).find_map(has_packets).or_else(|| self.connections.iter().find_map(has_packets))
    }

    /// Takes a message of the peer's process for the client with the CID `cid`. `None` if there is none, and for one that no packet of the
    /// peer's is: its client may have taken its process over.
    pub fn receive(&mut self, cid: u32, payload: &mut [u8; LARGEST]) -> Option<Received> {
        let mut bytes = [0; HEADER];
        let parts = &mut [io::IoSliceMut::new(&mut bytes), io::IoSliceMut::new(payload)];
        let length = (&self.file).read_vectored(parts).ok()?;
        if length == ENDED.len() {
            return Some(Received::Ended);
        }
        let header = Header::parse(&bytes);
        let is_packet = header.kind == STREAM && (REQUEST..=CREDIT_REQUEST).contains(&header.op);
        let is_for_client = header.src_cid == u64::from(self.peer) && header.dst_cid == u64::from(cid) && is_packet;
        let length = length.checked_sub(HEADER).filter(|length| is_for_client && *length == header.len as usize)?;
        let ports = (header.dst_port, header.src_port);
        if header.op == RST {
            self.forget(ports);
        } else if let Some(connection) = self.connections.get_mut(&ports) {
            connection.answered = true;
        }
        Some(Received::Packet(header, length))
    }

    /// Drops all connections, of whose end the peer is told. Returns their ports.
    pub fn end(&mut self) -> impl Iterator<Item = Ports> + use<> {
        self.to_end = true;
        self.forget_all()
    }

    /// Drops all connections, which the peer does not know any more. Returns their ports.
    pub fn forget_all(&mut self) -> impl Iterator<Item = Ports> + use<> {
        self.waiting = 0;
        mem::take(&mut self.connections).into_keys()
    }

    /// Drops all messages of the peer's process, `most` at most.
    pub fn drain(&self, most: usize) {
        for _ in 0..most {
            if (&self.file).read(&mut [0; 1]).is_err() {
                return;
            }
        }
    }

    /// Has `events` report messages, if `wanted`, and room for what is to be sent, if there is any.
    pub fn watch(&mut self, events: &OwnedFd, wanted: bool) {
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, wanted);
        interest.set(epoll::EventFlags::OUT, self.to_end || self.next().is_some());
        if interest != self.interest && epoll::modify(events, self.file.as_fd(), epoll::EventData::new_u64(0), interest).is_ok() {
            self.interest = interest;
        }
    }
}
