//! A device whose requests another program carries out: the front end of the vhost-user protocol.
//!
//! The back end gets the client's RAM and rings of its own ([`Relay`]), and is told of requests, and tells of answers, by eventfds. If
//! it ends, or breaks the protocol, so does this process, and both are started again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use libc::c_long;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, read, write};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::protocol::{Connection, F_PROTOCOL_FEATURES, QueueAddresses, Region};
use crate::relay::{QUEUE_SIZE, Relay, rings};
use crate::server::{BATCH, Backend, Progress, Sources};
use crate::session::Session;

/// Time that a back end has to answer what it was asked, when its client resets the device. It then ends: the requests may be dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time that a back end has for each reply of the protocol: one that hangs ends with this process, and is started again.
const REPLY: Duration = Duration::from_secs(30);

/// Time after which a back end that has answered none of its requests is given up: it ends with this process, and both are started again.
/// Long, as a disk can be busy for a minute.
const ANSWER: Duration = Duration::from_secs(240);

/// Features of queues that a back end must have.
const NEEDED: u64 = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_INDIRECT_DESC | F_PROTOCOL_FEATURES;

/// The part of a device that back ends do not know.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Features of the device that its client may be offered, beside those of queues: those without which the device can be used by reading
    /// configuration space, which clients can't write.
    pub features: u64,
    /// Size of its configuration space, in bytes: a multiple of 4.
    pub configuration: u32,
    /// Its requests are FUSE's, and belong to a [`Session`].
    pub has_sessions: bool,
}

/// A device with a back end.
pub struct VhostUser<const QUEUES: usize> {
    back_end: Connection,
    features: u64,
    configuration: Vec<(u64, u32)>,
    relays: [Relay; QUEUES],
    /// The rings' memory.
    rings: GuestMemoryMmap,
    /// Eventfds: requests of each queue, and answers of all.
    kicks: [OwnedFd; QUEUES],
    call: OwnedFd,
    is_running: bool,
    session: Option<Session>,
    /// [`ANSWER`], but for tests.
    limit: Duration,
    /// Start of the time without an answer; `None` while the back end has no requests.
    waits_since: Option<Instant>,
}

impl<const QUEUES: usize> VhostUser<QUEUES> {
    /// Connects to a back end. `memory` is the client's RAM, in the file `window` from its begin on.
    ///
    /// # Errors
    /// The back end ends, lacks something, or refuses something.
    pub fn new(socket: UnixStream, kind: Kind, memory: &GuestMemoryMmap, window: &File) -> io::Result<Self> {
        let (back_end, offered) = Connection::new(socket, REPLY)?;
        if offered & NEEDED != NEEDED {
            return Err(io::Error::other(format!("the back end has not all of the features {NEEDED:#x}, but {offered:#x}")));
        }
        let configuration = if kind.configuration == 0 { Vec::new() } else { words(&back_end.configuration(kind.configuration)?) };
        let (at, size) = rings(QUEUES);
        let file = File::from(memfd_create("rings", MemfdFlags::CLOEXEC)?);
        file.set_len(size as u64)?;
        let rings = [(at, size, Some(FileOffset::new(file.try_clone()?, 0)))];
        let rings = GuestMemoryMmap::from_ranges_with_files(rings).map_err(io::Error::other)?;
        let regions = memory.iter().map(|region| (region, window.as_fd())).chain(rings.iter().map(|region| (region, file.as_fd())));
        let regions = regions.map(|(region, file)| {
            let here = region.as_ptr() as u64;
            Region { address: region.start_addr().0, size: region.len(), here, file }
        });
        back_end.set_memory(&regions.collect::<Vec<_>>())?;
        let relays = std::array::from_fn(|number| Relay::new(rings.clone(), number));
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let kicks = (0..QUEUES).map(|_| event()).collect::<Result<Vec<_>, _>>()?;
        let kicks = kicks.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        let features = offered & kind.features;
        let session = kind.has_sessions.then(Session::default);
        let call = event()?;
        let (is_running, limit, waits_since) = (false, ANSWER, None);
        Ok(Self { back_end, features, configuration, relays, rings, kicks, call, is_running, session, limit, waits_since })
    }

    /// Sets the time after which the back end is given up if it has answered none of its requests.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Starts the back end's queues. `features` are those that the driver accepts.
    fn set_up(&self, memory: &GuestMemoryMmap, features: u64, queues: &[Queue]) -> io::Result<()> {
        let accepted = features & (self.features | 1 << VIRTIO_RING_F_INDIRECT_DESC);
        self.back_end.set_features(accepted | NEEDED & !(1 << VIRTIO_RING_F_INDIRECT_DESC))?;
        let here = |memory: &GuestMemoryMmap, address| memory.get_host_address(address).map(|at| at as u64).map_err(io::Error::other);
        for (number, (queue, (relay, kick))) in (0..).zip(queues.iter().zip(self.relays.iter().zip(&self.kicks))) {
            let [available, used] = relay.addresses();
            let addresses = QueueAddresses {
                descriptors: here(memory, GuestAddress(queue.desc_table()))?,
                available: here(&self.rings, available)?,
                used: here(&self.rings, used)?,
            };
            self.back_end.start_queue(number, relay.size(), &addresses, kick.as_fd(), self.call.as_fd())?;
        }
        Ok(())
    }

    /// Relays requests and answers of one queue.
    fn relay(&mut self, memory: &GuestMemoryMmap, number: usize, queue: &mut Queue) -> Result<Progress, Error> {
        let relay = &mut self.relays[number];
        match relay.collect() {
            Ok(true) => self.waits_since = None,
            Ok(false) => {}
            Err(error) => {
                self.give_up(&error);
                return Ok(Progress::default());
            }
        }
        let mut used = 0;
        while let Some((head, written)) = relay.next_answer() {
            queue.add_used(memory, head, written)?;
            used += 1;
        }
        let interrupt = u32::from(used != 0 && queue.needs_notification(memory)?) << number;
        queue.disable_notification(memory)?;
        let (mut offered, mut refused) = (0, 0);
        while offered + refused < BATCH {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            let head = chain.head_index();
            if let Some(written) = self.session.as_mut().and_then(|session| session.refuse(memory, chain)) {
                relay.answer(head, written)?;
                refused += 1;
            } else {
                relay.offer(head)?;
                offered += 1;
            }
        }
        if offered != 0 {
            relay.publish()?;
            if let Err(error) = write(&self.kicks[number], &1u64.to_ne_bytes()) {
                self.give_up(&error);
                return Ok(Progress { interrupt, more: false });
            }
        }
        // Refused requests are given back by the next call.
        Ok(Progress { interrupt, more: refused != 0 || offered == BATCH || queue.enable_notification(memory)? })
    }

    /// Gives up the back end if it has answered none of its requests for the limit.
    fn watch(&mut self) {
        if self.relays.iter().all(Relay::is_idle) {
            self.waits_since = None;
            return;
        }
        let waits = self.waits_since.get_or_insert_with(Instant::now).elapsed();
        if waits >= self.limit {
            self.give_up(&io::Error::other(format!("it has answered no request for {} s", waits.as_secs())));
        }
    }

    /// Ends the connection, which ends the process when it next waits.
    fn give_up(&self, why: &dyn std::error::Error) {
        eprintln!("stile-devices: the back end failed: {why}");
        self.back_end.close();
    }

    /// Waits until the back end has answered all requests.
    fn drain(&mut self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Before the rings: an answer that comes later shows itself.
            self.clear_call()?;
            self.relays.iter_mut().try_for_each(|relay| relay.collect().map(drop))?;
            if self.relays.iter().all(Relay::is_idle) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut files = [PollFd::new(&self.call, PollFlags::IN), PollFd::from_borrowed_fd(self.back_end.file(), PollFlags::RDHUP)];
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut files, Some(&timeout)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !files[1].revents().is_empty() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn clear_call(&self) -> io::Result<()> {
        match read(&self.call, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl<const QUEUES: usize> Backend for VhostUser<QUEUES> {
    const QUEUE_SIZES: &'static [u16] = &[QUEUE_SIZE; QUEUES];
    const SYSTEM_CALLS: &'static [c_long] = &[libc::SYS_sendmsg, libc::SYS_shutdown, libc::SYS_clock_gettime];

    fn features(&self) -> u64 {
        self.features
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        self.configuration.clone()
    }

    fn start(&mut self, memory: &GuestMemoryMmap, features: u64, queues: &[Queue]) -> Result<(), Error> {
        for (relay, queue) in self.relays.iter_mut().zip(queues) {
            relay.start(queue.size())?;
        }
        self.is_running = true;
        self.session = self.session.take().map(|_| Session::default());
        if let Err(error) = self.set_up(memory, features, queues) {
            self.give_up(&error);
        }
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        if !self.is_running {
            return Ok(());
        }
        let stopped = self.drain().and_then(|()| (0..QUEUES as u32).try_for_each(|number| self.back_end.stop_queue(number)));
        if let Err(error) = &stopped {
            self.give_up(error);
        }
        self.is_running = stopped.is_err();
        self.waits_since = None;
        stopped
    }

    fn patience(&self) -> Option<Duration> {
        self.waits_since.map(|since| self.limit.saturating_sub(since.elapsed()))
    }

    fn sources(&self, _: bool) -> Sources<'_> {
        [Some(self.call.as_fd()), Some(self.back_end.file())]
    }

    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error> {
        // Before the rings: an answer that comes later shows itself.
        if let Err(error) = self.clear_call() {
            self.give_up(&error);
        }
        let mut all = Progress::default();
        for (number, queue) in queues.iter_mut().enumerate() {
            let Progress { interrupt, more } = self.relay(memory, number, queue)?;
            all = Progress { interrupt: all.interrupt | interrupt, more: all.more || more };
        }
        self.watch();
        Ok(all)
    }
}

/// The words of configuration space that are not 0.
fn words(bytes: &[u8]) -> Vec<(u64, u32)> {
    let words = bytes.chunks_exact(4).map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)));
    (0..).step_by(4).zip(words).filter(|(_, word)| *word != 0).collect()
}
