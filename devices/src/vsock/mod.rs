//! A virtio socket device (Virtio 1.2, section 5.10): connections of a client with other clients of this server.
//!
//! Each device's process has a [`Link`] with each other one's. A packet goes from the client's queue to its connection's
//! [`Connection`](connection::Connection), by the link when that has room, and to the peer's queue when that has buffers. So a peer that takes
//! nothing holds up its own connections only: what waits for it is limited by its own credit, and by [`WAITING`].

mod connection;
pub mod forward;
mod link;
pub mod mesh;
pub mod packet;
pub mod stream;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use libc::c_long;
use rustix::event::epoll;
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

use crate::server::{BATCH, Backend, Progress, Sources, fill_buffers, use_buffers};
use connection::LARGEST;
use link::{Link, Received};
use packet::{CREDIT_REQUEST, HEADER, Header, RST, RW, STREAM};

/// Numbers of the queues.
const RECEIVED: usize = 0;
const SENT: usize = 1;
const EVENTS: usize = 2;

/// Largest payload of a client's packet, in bytes.
const MAX_PAYLOAD: usize = 64 << 10;

/// Bytes that wait for all peers, at most: for one, as many as may be added for all. A connection that has more is ended. Linux's have 256 KiB
/// at most, unless a program changes that.
pub const WAITING: usize = 4 << 20;

/// Refusals that wait for a client's buffers before no more of its packets are taken.
const REFUSALS: usize = 128;

/// Messages of a peer's process that are dropped when a driver starts, at most: a peer could go on for ever.
const STALE: usize = 4096;

/// VIRTIO_VSOCK_EVENT_TRANSPORT_RESET: all connections have ended.
const TRANSPORT_RESET: u32 = 0;

/// A packet for the client, of which a part may have been passed on.
struct Incoming {
    header: Header,
    payload: Box<[u8]>,
    done: usize,
}

/// A client's sockets.
pub struct Vsock {
    cid: u32,
    links: Vec<Link>,
    /// Waits for the links.
    events: OwnedFd,
    /// Packets for the client that come before those of links.
    refusals: VecDeque<Header>,
    incoming: Option<Incoming>,
    /// The link whose message was taken last.
    turn: usize,
    /// The driver offered a buffer for the next packet when there was none.
    has_buffer: bool,
    /// The driver is to be told that all connections have ended.
    has_reset: bool,
    /// A client's packet: it can change its buffers at any time.
    packet: Box<[u8]>,
    payload: Box<[u8; LARGEST]>,
}

impl Vsock {
    /// The sockets of the client with the address `cid`. `links` are sockets of messages, one to the process of each other client, by its
    /// address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(cid: u32, links: Vec<(u32, OwnedFd)>) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let links = links.into_iter().map(|(peer, socket)| Link::new(peer, socket, &events)).collect::<io::Result<_>>()?;
        Ok(Self {
            cid,
            links,
            events,
            refusals: VecDeque::new(),
            incoming: None,
            turn: 0,
            has_buffer: false,
            has_reset: false,
            packet: vec![0; MAX_PAYLOAD].into(),
            payload: Box::new([0; LARGEST]),
        })
    }

    /// Takes a packet of the client's.
    fn send(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) {
        let Ok(mut reader) = chain.reader(memory) else { return };
        let mut bytes = [0; HEADER];
        if reader.read_exact(&mut bytes).is_err() {
            return;
        }
        let header = Header::parse(&bytes);
        let length = header.len as usize;
        let is_whole = self.packet.get_mut(..length).is_some_and(|payload| reader.read_exact(payload).is_ok());
        // The client's own address only.
        if header.src_cid != u64::from(self.cid) || header.op == 0 {
            return;
        }
        // A link may have as much as all others leave: one that takes nothing does not use up what others need.
        let most = WAITING - self.links.iter().map(Link::waiting).sum::<usize>().min(WAITING);
        let payload = self.packet.get(..length).unwrap_or_default();
        let is_known = is_whole && header.kind == STREAM && header.op <= CREDIT_REQUEST && (length == 0 || header.op == RW);
        let link = self.links.iter_mut().find(|link| header.dst_cid == u64::from(link.peer)).filter(|_| is_known);
        if !link.is_some_and(|link| link.add(&header, payload, most)) && header.op != RST {
            self.refusals.push_back(header.refusal());
        }
    }

    /// Whether there is a packet for the client. Takes the next one from the links if none waits.
    fn has_packet(&mut self) -> bool {
        if !self.refusals.is_empty() || self.incoming.is_some() {
            return true;
        }
        for _ in 0..self.links.len() {
            self.turn = (self.turn + 1) % self.links.len();
            let link = &mut self.links[self.turn];
            match link.receive(self.cid, &mut self.payload) {
                None => {}
                Some(Received::Packet(header, length)) => {
                    self.incoming = Some(Incoming { header, payload: self.payload[..length].into(), done: 0 });
                    return true;
                }
                Some(Received::Ended) => {
                    let of_client = Header { src_cid: self.cid.into(), dst_cid: link.peer.into(), kind: STREAM, ..Header::default() };
                    let ended = link.forget_all().map(|(src_port, dst_port)| Header { src_port, dst_port, ..of_client }.refusal());
                    self.refusals.extend(ended);
                    if !self.refusals.is_empty() {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Fills a buffer with the next packet, or with as much of its payload as fits. Returns the number of bytes.
    fn fill(&mut self, memory: &GuestMemoryMmap, chain: DescriptorChain<&GuestMemoryMmap>) -> u32 {
        let Ok(mut writer) = chain.writer(memory) else { return 0 };
        // A buffer without room for a header and a byte is none.
        let Some(room) = writer.available_bytes().checked_sub(HEADER).filter(|room| *room != 0) else { return 0 };
        if let Some(header) = self.refusals.pop_front() {
            return if writer.write_all(&header.bytes()).is_ok() { HEADER as u32 } else { 0 };
        }
        let Some(incoming) = &mut self.incoming else { return 0 };
        let part = &incoming.payload[incoming.done..];
        let part = &part[..part.len().min(room)];
        let header = Header { len: part.len() as u32, ..incoming.header };
        let is_written = writer.write_all(&header.bytes()).and_then(|()| writer.write_all(part)).is_ok();
        let written = (HEADER + part.len()) as u32;
        incoming.done += part.len();
        if incoming.done == incoming.payload.len() {
            self.incoming = None;
        }
        if is_written { written } else { 0 }
    }

    /// Passes packets on to the client, a batch at most.
    fn receive(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<Progress, Error> {
        let (progress, has_buffer) =
            fill_buffers(memory, queue, self, |vsock| vsock.has_packet().then_some(()), |vsock, chain, ()| vsock.fill(memory, chain))?;
        self.has_buffer = has_buffer.unwrap_or(self.has_buffer);
        Ok(progress)
    }

    /// Takes the client's packets, a batch at most; none while it takes no refusals.
    fn take(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<Progress, Error> {
        if self.refusals.len() >= REFUSALS {
            // It has no buffers for them: they come with an interrupt.
            return Ok(Progress { interrupt: 0, more: self.has_buffer });
        }
        use_buffers(memory, queue, |chain| {
            self.send(memory, chain);
            0
        })
    }

    /// Tells the driver that all connections have ended, if it is to know.
    fn report(&mut self, memory: &GuestMemoryMmap, queue: &mut Queue) -> Result<Progress, Error> {
        if !self.has_reset {
            return Ok(Progress::default());
        }
        let Some(chain) = queue.iter(memory)?.next() else {
            return Ok(Progress { interrupt: 0, more: queue.enable_notification(memory)? });
        };
        let head = chain.head_index();
        let event = TRANSPORT_RESET.to_le_bytes();
        let is_written = chain.writer(memory).is_ok_and(|mut writer| writer.write_all(&event).is_ok());
        self.has_reset = false;
        queue.add_used(memory, head, if is_written { event.len() as u32 } else { 0 })?;
        Ok(Progress { interrupt: u32::from(queue.needs_notification(memory)?), more: false })
    }
}

impl Backend for Vsock {
    /// Packets to the client, its own, and events.
    const QUEUE_SIZES: &'static [u16] = &[128, 128, 8];

    const SYSTEM_CALLS: &'static [c_long] = &[libc::SYS_epoll_ctl];

    fn features(&self) -> u64 {
        0
    }

    /// The address (section 5.10.4).
    fn configuration(&self) -> Vec<(u64, u32)> {
        vec![(0, self.cid)]
    }

    fn start(&mut self, memory: &GuestMemoryMmap, _: u64, queues: &[Queue]) -> Result<(), Error> {
        self.links.iter().for_each(|link| link.drain(STALE));
        self.has_reset = false;
        for queue in queues {
            // It ran with an earlier server, whose connections are lost.
            self.has_reset |= queue.used_idx(memory, Ordering::Acquire)?.0 != 0;
        }
        self.stop().map_err(|_| Error::QueueNotReady)
    }

    fn stop(&mut self) -> io::Result<()> {
        for link in &mut self.links {
            drop(link.end());
            link.send(self.cid, 1);
        }
        self.refusals.clear();
        (self.incoming, self.has_buffer) = (None, false);
        Ok(())
    }

    fn sources(&self, has_driver: bool) -> Sources<'_> {
        [has_driver.then(|| self.events.as_fd()), None]
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        let mut all = Progress::default();
        let mut add = |progress: Progress, queue: usize| {
            all.interrupt |= progress.interrupt << queue;
            all.more |= progress.more;
        };
        add(self.report(memory, &mut queues[EVENTS])?, EVENTS);
        add(self.take(memory, &mut queues[SENT])?, SENT);
        self.links.iter_mut().for_each(|link| link.send(self.cid, BATCH));
        add(self.receive(memory, &mut queues[RECEIVED])?, RECEIVED);
        self.links.iter_mut().for_each(|link| link.watch(&self.events, self.has_buffer));
        Ok(all)
    }
}
