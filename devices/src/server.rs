//! The protocol of a served device's registers, and the state of its queues.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::c_long;
use stile_virtio::{EventPage, server, status};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Buffers of a queue that are used before the client is interrupted and events are looked at.
pub(crate) const BATCH: usize = 32;

/// Messages about a client's queues, at most: a client can't fill the server's console.
const MAX_COMPLAINTS: u32 = 8;

/// The registers of a device, as the server accesses them (`stile_virtio::server`).
pub trait Registers {
    /// Loads a register.
    fn read(&self, offset: u64) -> u32;
    /// Stores to a register.
    fn write(&self, offset: u64, value: u32);
    /// The page with the device's events.
    fn events(&self) -> &EventPage;
}

/// A register of two halves.
pub(crate) fn read_pair(registers: &impl Registers, offset: u64) -> u64 {
    u64::from(registers.read(offset)) | u64::from(registers.read(offset + 4)) << 32
}

/// Files, beside the device's, on which its process waits.
pub type Sources<'a> = [Option<BorrowedFd<'a>>; 2];

/// The function of a device, behind its queues.
pub trait Backend {
    /// Maximum numbers of descriptors of the queues: powers of two.
    const QUEUE_SIZES: &'static [u16];

    /// System calls that it makes, beside those of [`sandbox`](crate::sandbox).
    const SYSTEM_CALLS: &'static [c_long] = &[];

    /// Bits of the features that the device offers, beside those of queues.
    fn features(&self) -> u64;

    /// The words of configuration space that are not 0, with their offsets.
    fn configuration(&self) -> Vec<(u64, u32)>;

    /// Prepares for a driver, which accepts these features and has these queues.
    ///
    /// # Errors
    /// A queue makes no sense.
    fn start(&mut self, memory: &GuestMemoryMmap, features: u64, queues: &[Queue]) -> Result<(), Error>;

    /// Ends the work for a driver: no buffer of the client's is accessed any more.
    ///
    /// # Errors
    /// Buffers may still be accessed; the process is about to end.
    fn stop(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Uses buffers of the queues, which are as many as [`Self::QUEUE_SIZES`]: of each a batch at most.
    ///
    /// # Errors
    /// A queue makes no sense.
    fn serve(&mut self, memory: &GuestMemoryMmap, queues: &mut [Queue]) -> Result<Progress, Error>;

    /// Files that are readable when there is input, or whose end is the device's. `has_driver`: a driver takes input.
    fn sources(&self, has_driver: bool) -> Sources<'_> {
        let _ = has_driver;
        Sources::default()
    }

    /// Returns the time after which [`Self::serve`] must be called even if no file is readable, if there is one.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Completes the work for a client that has been turned off.
    ///
    /// # Errors
    /// Data can't be written.
    fn client_ended(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Consequences of serving queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// A bit for each queue of which the client waits for buffers that were used.
    pub interrupt: u32,
    /// There may be more work. If not, an interrupt comes when there is.
    pub more: bool,
}

/// Uses buffers of a queue, the device's first one, a batch at most. `answer` returns the number of bytes that it has written into one.
///
/// # Errors
/// The queue makes no sense.
pub fn use_buffers(
    memory: &GuestMemoryMmap,
    queue: &mut Queue,
    mut answer: impl FnMut(DescriptorChain<&GuestMemoryMmap>) -> u32,
) -> Result<Progress, Error> {
    use_batch(memory, queue, |queue| {
        let mut used = 0;
        while used < BATCH {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            let head = chain.head_index();
            let written = answer(chain);
            queue.add_used(memory, head, written)?;
            used += 1;
        }
        Ok(used)
    })
}

/// Uses buffers of a queue, the device's first one: `batch` uses [`BATCH`] buffers, or all if there are fewer, and returns their number.
///
/// # Errors
/// The queue makes no sense.
pub fn use_batch(
    memory: &GuestMemoryMmap,
    queue: &mut Queue,
    batch: impl FnOnce(&mut Queue) -> Result<usize, Error>,
) -> Result<Progress, Error> {
    queue.disable_notification(memory)?;
    let used = batch(queue)?;
    let interrupt = u32::from(used != 0 && queue.needs_notification(memory)?);
    // Until it is known that there are no more, the driver need not kick.
    Ok(Progress { interrupt, more: used == BATCH || queue.enable_notification(memory)? })
}

/// Fills buffers of a queue for the client, a batch at most. `next` takes an item of `source` that waits; `fill` returns the number of bytes
/// that it has written into a buffer. Returns also whether a buffer was left without an item, or an item without a buffer, if that was found.
///
/// # Errors
/// The queue makes no sense.
pub fn fill_buffers<S, T>(
    memory: &GuestMemoryMmap,
    queue: &mut Queue,
    source: &mut S,
    mut next: impl FnMut(&mut S) -> Option<T>,
    mut fill: impl FnMut(&mut S, DescriptorChain<&GuestMemoryMmap>, T) -> u32,
) -> Result<(Progress, Option<bool>), Error> {
    queue.disable_notification(memory)?;
    let (mut used, mut more, mut has_buffer) = (0, true, None);
    while used < BATCH {
        // The source keeps its items until there is a buffer.
        let Some(chain) = queue.iter(memory)?.next() else {
            has_buffer = Some(false);
            more = queue.enable_notification(memory)?;
            break;
        };
        let Some(item) = next(source) else {
            has_buffer = Some(true);
            more = false;
            queue.go_to_previous_position();
            break;
        };
        let head = chain.head_index();
        let written = fill(source, chain, item);
        queue.add_used(memory, head, written)?;
        used += 1;
    }
    let interrupt = u32::from(used != 0 && queue.needs_notification(memory)?);
    Ok((Progress { interrupt, more }, has_buffer))
}

/// Serves a device to a client.
pub struct Server<R, B> {
    registers: R,
    memory: GuestMemoryMmap,
    backend: B,
    /// The queues of a running driver, or none.
    queues: Vec<Queue>,
    client_is_off: bool,
    /// Number of the last change of the state that was followed.
    state: Option<u32>,
    /// Number of the last event that was acknowledged.
    acknowledged: Option<u32>,
    /// Number of times that the queues could not be used.
    complaints: u32,
}

impl<R: Registers, B: Backend> Server<R, B> {
    /// A server, which is offline. `memory` is the client's RAM at the client's addresses.
    pub const fn new(registers: R, memory: GuestMemoryMmap, backend: B) -> Self {
        Self { registers, memory, backend, queues: Vec::new(), client_is_off: false, state: None, acknowledged: None, complaints: 0 }
    }

    /// Offers the device. A driver that ran with an earlier server goes on.
    pub fn come_online(&mut self) {
        let features = self.backend.features() | 1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX;
        // An earlier server may have been killed before its device went offline.
        self.registers.write(server::CONTROL, 0);
        for half in 0..2 {
            self.registers.write(server::DEVICE_FEATURES_SEL, half);
            self.registers.write(server::DEVICE_FEATURES, (features >> (32 * half)) as u32);
        }
        for (number, size) in (0..).zip(B::QUEUE_SIZES) {
            self.registers.write(server::QUEUE_SEL, number);
            self.registers.write(server::QUEUE_SIZE_MAX, u32::from(*size));
        }
        for (offset, value) in self.backend.configuration() {
            self.registers.write(server::CONFIG + offset, value);
        }
        self.registers.write(server::CONTROL, server::CONTROL_ONLINE);
        self.follow_state();
        if self.has_driver() {
            // An earlier server may have died between its use of buffers and the interrupt for them.
            self.registers.write(server::INTERRUPT, (1 << B::QUEUE_SIZES.len()) - 1);
        }
    }

    /// Handles events and uses buffers until there are none: an interrupt comes when there are again. None comes while there is
    /// work: events are acknowledged when it is done.
    pub fn attend(&mut self) {
        loop {
            let state = self.registers.events().state();
            if self.state.replace(state) != Some(state) {
                self.follow_state();
            }
            if self.serve() {
                continue;
            }
            let acknowledged = self.registers.events().acknowledge();
            if self.acknowledged.replace(acknowledged) == Some(acknowledged) {
                return;
            }
        }
    }

    /// Uses buffers for a reason that is not the client's. For events, too, if there is much to do.
    pub fn attend_backend(&mut self) {
        if self.serve() {
            self.attend();
        }
    }

    /// The function of the device.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Files, beside the device's, on which its process waits.
    pub fn sources(&self) -> Sources<'_> {
        self.backend.sources(self.has_driver())
    }

    /// Returns the time after which [`Server::attend_backend`] must be called even if nothing happens, if there is one.
    pub fn patience(&self) -> Option<Duration> {
        self.backend.patience()
    }

    /// Whether a driver is running.
    pub const fn has_driver(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether the client's VM is off.
    pub const fn client_is_off(&self) -> bool {
        self.client_is_off
    }

    /// Acknowledges a reset, and finds the queues of a driver that has started.
    fn follow_state(&mut self) {
        let mut state = self.registers.read(server::STATE);
        if state & server::STATE_RESET != 0 {
            // If it does not stop, this process's end acknowledges the reset.
            if self.stop().is_err() {
                return;
            }
            self.registers.write(server::RESET_DONE, 1);
            state = self.registers.read(server::STATE);
        }
        self.client_is_off = state & server::STATE_OFF != 0;
        // The queues of a client that is off may lead to more and more requests.
        if self.client_is_off || state & status::DRIVER_OK == 0 {
            let _ = self.stop();
        } else if self.queues.is_empty() && state & status::NEEDS_RESET == 0 {
            match self.find_queues() {
                Ok(queues) => self.queues = queues,
                Err(error) => self.give_up(&error),
            }
        }
        if self.client_is_off
            && let Err(error) = self.backend.client_ended()
        {
            eprintln!("stile-devices: data of a client that is off can't be written: {error}");
        }
    }

    fn stop(&mut self) -> io::Result<()> {
        self.queues.clear();
        self.backend.stop()
    }

    /// The client's queues make no sense: its driver must reset them.
    fn give_up(&mut self, error: &Error) {
        self.complaints = self.complaints.saturating_add(1);
        if self.complaints <= MAX_COMPLAINTS {
            eprintln!("stile-devices: the client's queues can't be used: {error}");
        }
        let _ = self.stop();
        self.registers.write(server::NEEDS_RESET, 1);
    }

    fn find_queues(&mut self) -> Result<Vec<Queue>, Error> {
        let features = read_pair(&self.registers, server::DRIVER_FEATURES);
        let queues = (0..).zip(B::QUEUE_SIZES).map(|(number, maximum)| self.find_queue(number, *maximum, features));
        let queues: Vec<Queue> = queues.collect::<Result<_, _>>()?;
        self.backend.start(&self.memory, features, &queues)?;
        Ok(queues)
    }

    fn find_queue(&self, number: u32, maximum: u16, features: u64) -> Result<Queue, Error> {
        self.registers.write(server::QUEUE_SEL, number);
        let mut queue = Queue::new(maximum)?;
        let size = self.registers.read(server::QUEUE_SIZE);
        queue.try_set_size(u16::try_from(size).map_err(|_| Error::InvalidSize)?)?;
        queue.try_set_desc_table_address(GuestAddress(read_pair(&self.registers, server::QUEUE_DESC)))?;
        queue.try_set_avail_ring_address(GuestAddress(read_pair(&self.registers, server::QUEUE_DRIVER)))?;
        queue.try_set_used_ring_address(GuestAddress(read_pair(&self.registers, server::QUEUE_DEVICE)))?;
        queue.set_event_idx(features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        queue.set_ready(self.registers.read(server::QUEUE_READY) != 0);
        if !queue.is_valid(&self.memory) {
            return Err(Error::QueueNotReady);
        }
        // Buffers are used in their order: those that an earlier server did not use are next.
        let next = queue.used_idx(&self.memory, Ordering::Acquire)?.0;
        queue.set_next_avail(next);
        queue.set_next_used(next);
        Ok(queue)
    }

    /// Uses buffers, a batch of each queue at most. Returns whether there may be more to do.
    fn serve(&mut self) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        match self.backend.serve(&self.memory, &mut self.queues) {
            Ok(Progress { interrupt, more }) => {
                if interrupt != 0 {
                    self.registers.write(server::INTERRUPT, interrupt);
                }
                more
            }
            Err(error) => {
                self.give_up(&error);
                true
            }
        }
    }
}
