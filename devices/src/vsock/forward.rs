//! The host's end of sockets: TCP connections to ports of this VM are forwarded to ports of clients.
//!
//! It is a peer of all clients' processes, with the address of the host (CID 2, Virtio 1.2, section 5.10.4). Only the host connects:
//! packets of clients that belong to none of its connections are answered with RST. Clients and TCP peers are hostile.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use libc::c_long;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::WAITING;
use super::connection::LARGEST;
use super::link::{Link, Received};
use super::packet::{CREDIT_UPDATE, Header, REQUEST, RST, RW, SHUTDOWN, STREAM};
use super::stream::{SENDS_NO_MORE, Stream};
use crate::server::BATCH;

/// The host's address.
pub const HOST: u32 = 2;

/// System calls that forwarding takes, beside those of [`sandbox`](crate::sandbox).
pub const SYSTEM_CALLS: &[c_long] = &[libc::SYS_accept4, libc::SYS_epoll_ctl, libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_shutdown];

/// Connections to a client, at most; further ones wait to be accepted. A link has more, and so ends none to make room.
const CONNECTIONS: usize = 32;

/// Bytes for a client that wait, at most, before no more are taken.
const FULL: usize = WAITING / 4;

/// First of the ports that connections begin at.
const FIRST_PORT: u32 = 1 << 16;

/// A port of this VM that leads to one of a client.
pub struct Forward {
    listener: TcpListener,
    cid: u32,
    port: u32,
}

impl Forward {
    /// Listens at a port of this VM for connections to port `port` of the client with the address `cid`.
    ///
    /// # Errors
    /// The port is in use.
    pub fn new(own: u16, cid: u32, port: u32) -> io::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", own))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, cid, port })
    }

    /// The port of this VM.
    ///
    /// # Errors
    /// The kernel's.
    pub fn own_port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }
}

/// The address of a client, the port at which a connection begins, and the client's port.
type Ends = (u32, u32, u32);

/// The host's connections.
pub struct Host {
    forwards: Vec<Forward>,
    links: Vec<Link>,
    /// Waits for the links.
    events: OwnedFd,
    connections: BTreeMap<Ends, (TcpStream, Stream)>,
    last_port: u32,
    payload: Box<[u8; LARGEST]>,
}

/// A packet of the host's, without its payload's length.
fn packet((cid, own, port): Ends, op: u16, flags: u32, (buf_alloc, fwd_cnt): (u32, u32)) -> Header {
    let (src_cid, dst_cid) = (HOST.into(), cid.into());
    Header { src_cid, dst_cid, src_port: own, dst_port: port, len: 0, kind: STREAM, op, flags, buf_alloc, fwd_cnt }
}

impl Host {
    /// Forwards connections by links: sockets of messages, one to the process of each client, by its address.
    ///
    /// # Errors
    /// The kernel's; a port leads to an address that no client has.
    pub fn new(forwards: Vec<Forward>, links: Vec<(u32, OwnedFd)>) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut links = links.into_iter().map(|(peer, socket)| Link::new(peer, socket, &events)).collect::<io::Result<Vec<_>>>()?;
        if let Some(forward) = forwards.iter().find(|forward| links.iter().all(|link| link.peer != forward.cid)) {
            return Err(io::Error::other(format!("no client has the address {}", forward.cid)));
        }
        // An earlier process may have had connections.
        links.iter_mut().for_each(|link| drop(link.end()));
        Ok(Self { forwards, links, events, connections: BTreeMap::new(), last_port: FIRST_PORT, payload: Box::new([0; LARGEST]) })
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    fn has_room(&self, cid: u32) -> bool {
        self.connections.keys().filter(|(other, ..)| *other == cid).count() < CONNECTIONS
    }

    /// Waits until there is something to do.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self) -> io::Result<()> {
        let mut files = vec![PollFd::new(&self.events, PollFlags::IN)];
        let accepting = self.forwards.iter().filter(|forward| self.has_room(forward.cid));
        files.extend(accepting.map(|forward| PollFd::new(&forward.listener, PollFlags::IN)));
        for ((cid, ..), (socket, stream)) in &self.connections {
            let is_full = self.links.iter().any(|link| link.peer == *cid && link.waiting() >= FULL);
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, stream.room() != 0 && !is_full);
            flags.set(PollFlags::OUT, !stream.waiting.is_empty());
            // With no flags, poll would still report a hang-up, each time.
            if !flags.is_empty() {
                files.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
            }
        }
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts connections, and passes bytes on, a batch of each.
    pub fn serve(&mut self) {
        self.accept();
        for index in 0..self.links.len() {
            self.receive(index);
        }
        let mut ended = Vec::new();
        for (ends, (socket, stream)) in &mut self.connections {
            let Some(link) = self.links.iter_mut().find(|link| link.peer == ends.0) else { continue };
            if !pass(*ends, socket, stream, link, &mut self.payload) {
                ended.push(*ends);
            }
        }
        for ends in ended {
            self.end(ends);
        }
        for link in &mut self.links {
            link.send(HOST, BATCH);
            link.watch(&self.events, true);
        }
    }

    /// Accepts a connection at each port.
    fn accept(&mut self) {
        for index in 0..self.forwards.len() {
            let forward = &self.forwards[index];
            let (cid, port) = (forward.cid, forward.port);
            if !self.has_room(cid) {
                continue;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let Ok(socket) = accept_with(&forward.listener, flags) else { continue };
            // Ports of connections are in use for a short time: 2^32 others come first.
            self.last_port = self.last_port.checked_add(1).filter(|port| *port != u32::MAX).unwrap_or(FIRST_PORT);
            let ends = (cid, self.last_port, port);
            let mut stream = Stream::default();
            let request = packet(ends, REQUEST, 0, stream.credit());
            let link = self.links.iter_mut().find(|link| link.peer == cid);
            if link.is_some_and(|link| link.add(&request, &[], WAITING)) {
                self.connections.insert(ends, (socket.into(), stream));
            }
        }
    }

    /// Takes packets of a link, a batch at most.
    fn receive(&mut self, index: usize) {
        for _ in 0..BATCH {
            let link = &mut self.links[index];
            let cid = link.peer;
            match link.receive(HOST, &mut self.payload) {
                None => return,
                Some(Received::Ended) => {
                    drop(link.forget_all());
                    self.connections.retain(|ends, _| ends.0 != cid);
                }
                Some(Received::Packet(header, length)) => {
                    let ends = (cid, header.dst_port, header.src_port);
                    let payload = &self.payload[..length];
                    match self.connections.get_mut(&ends).map(|(_, stream)| stream.receive(&header, payload)) {
                        Some(true) => {}
                        Some(false) => self.end(ends),
                        // A full link drops the RST: the packet belongs to no connection.
                        None if header.op != RST => {
                            let _ = link.add(&header.refusal(), &[], WAITING);
                        }
                        None => {}
                    }
                }
            }
        }
    }

    /// Ends a connection, with an RST for the client unless the client has reset it.
    fn end(&mut self, ends: Ends) {
        let Some((_, stream)) = self.connections.remove(&ends) else { return };
        let link = self.links.iter_mut().find(|link| link.peer == ends.0);
        if let Some(link) = link.filter(|_| !stream.is_reset) {
            let _ = link.add(&packet(ends, RST, 0, (0, 0)), &[], WAITING);
        }
    }
}

/// Passes bytes of a connection on in both directions. Returns false if it has ended.
fn pass(ends: Ends, socket: &mut TcpStream, stream: &mut Stream, link: &mut Link, payload: &mut [u8; LARGEST]) -> bool {
    while !stream.waiting.is_empty() {
        match socket.write(stream.waiting.as_slices().0) {
            Ok(0) => return false,
            Ok(length) => stream.take(length),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    if stream.is_over() {
        return false;
    }
    if stream.input_ends && stream.waiting.is_empty() && !stream.is_shut {
        stream.is_shut = true;
        let _ = socket.shutdown(Shutdown::Write);
    }
    if stream.has_credit() && !link.add(&packet(ends, CREDIT_UPDATE, 0, stream.credit()), &[], WAITING) {
        return false;
    }
    let room = if link.waiting() < FULL { stream.room().min(LARGEST) } else { 0 };
    if room == 0 {
        return true;
    }
    match socket.read(&mut payload[..room]) {
        Ok(0) => {
            stream.output_has_ended = true;
            link.add(&packet(ends, SHUTDOWN, SENDS_NO_MORE, stream.credit()), &[], WAITING)
        }
        Ok(length) => {
            stream.send(length);
            let header = Header { len: length as u32, ..packet(ends, RW, 0, stream.credit()) };
            link.add(&header, &payload[..length], WAITING)
        }
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
