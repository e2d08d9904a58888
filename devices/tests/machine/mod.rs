//! A client with its RAM, and a server of its device, on Stile's model of the registers.

use std::cell::RefCell;
use std::rc::Rc;

use stile_devices::{Backend, Registers, Server};
use stile_virtio::{Effect, EventPage, Transport, client, server};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The client's RAM.
pub const RAM: u64 = 0x4000_0000;
pub const RAM_SIZE: usize = 1 << 20;
/// First address behind the queues.
pub const DATA: u64 = RAM + 0x1_0000;
/// Number of descriptors of each queue.
pub const DESCRIPTORS: u16 = 8;

pub const NEXT: u16 = 1;
pub const WRITABLE: u16 = 2;

/// Addresses of the parts of a queue.
pub const fn descriptors(queue: usize) -> u64 {
    RAM + 0x4000 * queue as u64
}

pub const fn available(queue: usize) -> u64 {
    descriptors(queue) + 0x1000
}

pub const fn used_ring(queue: usize) -> u64 {
    descriptors(queue) + 0x2000
}

#[derive(Clone)]
pub struct Shared(Rc<RefCell<Transport>>, Rc<EventPage>);

impl Registers for Shared {
    fn read(&self, offset: u64) -> u32 {
        self.0.borrow_mut().server_read(offset)
    }

    fn write(&self, offset: u64, value: u32) {
        let _: Effect = self.0.borrow_mut().server_write(offset, value);
    }

    fn events(&self) -> &EventPage {
        &self.1
    }
}

/// A client with a device, and the device's server.
pub struct Machine<B: Backend> {
    pub registers: Shared,
    pub memory: GuestMemoryMmap,
    pub server: Server<Shared, B>,
    /// Chains that were offered, for each queue.
    pub offered: Vec<u16>,
    /// Features that the driver accepts, beside VERSION_1.
    features: u32,
}

impl<B: Backend> Machine<B> {
    /// A machine whose driver has negotiated features and has queues. `device` is the type of the device.
    pub fn new(device: u32, backend: B, features: u32) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(RAM), RAM_SIZE)]).expect("memory");
        Self::with_memory(device, memory, backend, features)
    }

    /// A machine as of [`Self::new`] with this memory: the RAM.
    pub fn with_memory(device: u32, memory: GuestMemoryMmap, backend: B, features: u32) -> Self {
        let registers = Shared(Rc::new(RefCell::new(Transport::new(device, 1 << 32, RAM_SIZE as u64, RAM))), Rc::new(EventPage::new()));
        let server = Server::new(registers.clone(), memory.clone(), backend);
        let mut machine = Self { registers, memory, server, offered: Vec::new(), features };
        machine.server.come_online();
        machine.start_driver();
        machine
    }

    pub fn transport(&self) -> std::cell::RefMut<'_, Transport> {
        self.registers.0.borrow_mut()
    }

    /// The client's accesses.
    pub fn store(&self, offset: u64, value: u32) {
        self.change(|transport| transport.write(offset, 4, value));
    }

    /// A change of the client's, of which the server learns.
    pub fn change(&self, change: impl FnOnce(&mut Transport) -> Effect) {
        let mut transport = self.transport();
        if let Effect::Event(event) = change(&mut transport) {
            let _: bool = transport.publish(self.registers.events(), event);
        }
    }

    pub fn load(&self, offset: u64) -> u32 {
        self.transport().read(offset, 4).expect("the server is there")
    }

    pub fn start_driver(&mut self) {
        self.start_driver_at(descriptors(0) as u32);
    }

    /// Starts the driver with the first queue's descriptors at an address.
    pub fn start_driver_at(&mut self, first: u32) {
        self.offered = vec![0; B::QUEUE_SIZES.len()];
        self.memory.write_slice(&[0; 0x1_0000], GuestAddress(RAM)).expect("RAM");
        self.store(client::STATUS, 3);
        for (half, features) in [self.features, 1].into_iter().enumerate() {
            self.store(client::DRIVER_FEATURES_SEL, half as u32);
            self.store(client::DRIVER_FEATURES, features);
        }
        self.store(client::STATUS, 11);
        for queue in 0..B::QUEUE_SIZES.len() {
            let table = if queue == 0 { first } else { descriptors(queue) as u32 };
            let parts = [
                (client::QUEUE_SEL, queue as u32),
                (client::QUEUE_SIZE, DESCRIPTORS.into()),
                (client::QUEUE_DESC, table),
                (client::QUEUE_DRIVER, available(queue) as u32),
                (client::QUEUE_DEVICE, used_ring(queue) as u32),
                (client::QUEUE_READY, 1),
            ];
            parts.into_iter().for_each(|(offset, value)| self.store(offset, value));
        }
        self.store(client::STATUS, 15);
        self.server.attend();
    }

    /// Resets the device, and has the server acknowledge that.
    pub fn reset(&mut self) {
        self.store(client::STATUS, 0);
        self.server.attend();
    }

    /// Has another server take over, as after the death of the first one.
    pub fn replace_server(&mut self, backend: B) {
        // The module takes the device offline.
        self.registers.write(server::CONTROL, 0);
        self.server = Server::new(self.registers.clone(), self.memory.clone(), backend);
        self.server.come_online();
        self.server.attend();
    }

    /// Writes a descriptor.
    pub fn describe(&self, queue: usize, index: u16, (address, length): (u64, u32), flags: u16, next: u16) {
        let at = GuestAddress(descriptors(queue) + 16 * u64::from(index));
        let bytes = [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.memory.write_slice(&bytes, at).expect("a descriptor");
    }

    /// Offers the chain that begins at descriptor `head`, without a kick.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let number = &mut self.offered[queue];
        let slot = GuestAddress(available(queue) + 4 + 2 * u64::from(*number % DESCRIPTORS));
        self.memory.write_obj(head, slot).expect("the ring");
        *number += 1;
        self.memory.write_obj(*number, GuestAddress(available(queue) + 2)).expect("the ring");
    }

    pub fn kick(&mut self, queue: usize) {
        self.store(client::QUEUE_NOTIFY, queue as u32);
        self.server.attend();
    }

    /// Number of chains that were used.
    pub fn used(&self, queue: usize) -> u16 {
        self.memory.read_obj(GuestAddress(used_ring(queue) + 2)).expect("the ring")
    }

    /// Length in the last entry of the used ring.
    pub fn written(&self, queue: usize) -> u32 {
        self.written_at(queue, self.used(queue).wrapping_sub(1))
    }

    /// Length in the used ring's entry with this index.
    pub fn written_at(&self, queue: usize, index: u16) -> u32 {
        let entry = used_ring(queue) + 4 + 8 * u64::from(index % DESCRIPTORS);
        self.memory.read_obj(GuestAddress(entry + 4)).expect("the ring")
    }

    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).expect("RAM");
        bytes
    }
}
