//! The protocol of a served device's registers, and its queue.

use stile_virtio::{client, server, status};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::disk::{Disk, QUEUE_SIZE};

/// Requests that are answered before the client is interrupted and events are looked at.
const BATCH: usize = 32;

/// Messages about a client's queue, at most: a client can't fill the server's console.
const MAX_COMPLAINTS: u32 = 8;

/// The registers of a device, as the server accesses them (`stile_virtio::server`).
pub trait Registers {
    /// Loads a register.
    fn read(&self, offset: u64) -> u32;
    /// Stores to a register.
    fn write(&self, offset: u64, value: u32);
}

/// A register of two halves.
pub(crate) fn read_pair(registers: &impl Registers, offset: u64) -> u64 {
    u64::from(registers.read(offset)) | u64::from(registers.read(offset + 4)) << 32
}

/// Serves a disk to a client.
pub struct Server<R> {
    registers: R,
    memory: GuestMemoryMmap,
    disk: Disk,
    /// The queue of a running driver.
    queue: Option<Queue>,
    client_is_off: bool,
    /// Number of times that the queue could not be used.
    complaints: u32,
}

impl<R: Registers> Server<R> {
    /// A server, which is offline. `memory` is the client's RAM at the client's addresses.
    pub const fn new(registers: R, memory: GuestMemoryMmap, disk: Disk) -> Self {
        Self { registers, memory, disk, queue: None, client_is_off: false, complaints: 0 }
    }

    /// Offers the device. A driver that ran with an earlier server goes on.
    pub fn come_online(&mut self) {
        let features = self.disk.features() | 1 << VIRTIO_RING_F_INDIRECT_DESC | 1 << VIRTIO_RING_F_EVENT_IDX;
        // An earlier server may have been killed before its device went offline.
        self.registers.write(server::CONTROL, 0);
        for half in 0..2 {
            self.registers.write(server::DEVICE_FEATURES_SEL, half);
            self.registers.write(server::DEVICE_FEATURES, (features >> (32 * half)) as u32);
        }
        self.registers.write(server::QUEUE_SEL, 0);
        self.registers.write(server::QUEUE_SIZE_MAX, QUEUE_SIZE.into());
        for (offset, value) in self.disk.configuration() {
            self.registers.write(server::CONFIG + offset, value);
        }
        self.registers.write(server::CONTROL, server::CONTROL_ONLINE);
        self.follow_state();
    }

    /// Handles events and answers requests until there are none: an interrupt comes when there are again.
    pub fn attend(&mut self) {
        loop {
            if self.registers.read(server::EVENTS) & server::EVENT_STATE != 0 {
                self.follow_state();
            }
            match self.serve() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.give_up(&error),
            }
        }
    }

    /// Whether the client's VM is off.
    pub const fn client_is_off(&self) -> bool {
        self.client_is_off
    }

    /// Acknowledges a reset, and finds the queue of a driver that has started.
    fn follow_state(&mut self) {
        let mut state = self.registers.read(server::STATE);
        if state & server::STATE_RESET != 0 {
            self.queue = None;
            self.registers.write(server::RESET_DONE, 1);
            state = self.registers.read(server::STATE);
        }
        self.client_is_off = state & server::STATE_OFF != 0;
        if state & status::DRIVER_OK == 0 {
            self.queue = None;
        } else if self.queue.is_none() && state & status::NEEDS_RESET == 0 {
            match self.find_queue() {
                Ok(queue) => self.queue = Some(queue),
                Err(error) => self.give_up(&error),
            }
        }
        if self.client_is_off
            && let Err(error) = self.disk.flush()
        {
            eprintln!("stile-devices: data of a client that is off can't be written: {error}");
        }
    }

    /// The client's queue makes no sense: its driver must reset it.
    fn give_up(&mut self, error: &Error) {
        self.complaints = self.complaints.saturating_add(1);
        if self.complaints <= MAX_COMPLAINTS {
            eprintln!("stile-devices: the client's queue can't be used: {error}");
        }
        self.queue = None;
        self.registers.write(server::NEEDS_RESET, 1);
    }

    fn find_queue(&mut self) -> Result<Queue, Error> {
        let features = read_pair(&self.registers, server::DRIVER_FEATURES);
        self.disk.negotiated(features);
        self.registers.write(server::QUEUE_SEL, 0);
        let mut queue = Queue::new(QUEUE_SIZE)?;
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
        // Requests are answered in their order: those that an earlier server did not answer are next.
        let next = queue.used_idx(&self.memory, std::sync::atomic::Ordering::Acquire)?.0;
        queue.set_next_avail(next);
        queue.set_next_used(next);
        Ok(queue)
    }

    /// Answers requests, a batch at most. Returns whether there may be more.
    fn serve(&mut self) -> Result<bool, Error> {
        let Some(queue) = &mut self.queue else { return Ok(false) };
        let memory = &self.memory;
        queue.disable_notification(memory)?;
        let mut answered = 0;
        while answered < BATCH {
            let Some(chain) = queue.iter(memory)?.next() else { break };
            let head = chain.head_index();
            let written = self.disk.answer(memory, chain);
            queue.add_used(memory, head, written)?;
            answered += 1;
        }
        if answered != 0 && queue.needs_notification(memory)? {
            self.registers.write(server::INTERRUPT, client::USED_BUFFER);
        }
        // Until it is known that there are no more, the driver need not kick.
        Ok(answered == BATCH || queue.enable_notification(memory)?)
    }
}
