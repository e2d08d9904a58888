//! A server of a disk on Stile's model of the registers, with good and with hostile clients.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;

use proptest::prelude::*;
use stile_devices::{Disk, QUEUE_SIZE, Registers, SECTOR, Server};
use stile_virtio::{Effect, Transport, client, server};
use tempfile::NamedTempFile;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The client's RAM.
const RAM: u64 = 0x4000_0000;
const RAM_SIZE: usize = 1 << 20;
const DESCRIPTORS: u64 = RAM;
const AVAILABLE: u64 = RAM + 0x1000;
const USED: u64 = RAM + 0x2000;
/// Header, status and data of requests.
const HEADER: u64 = RAM + 0x4000;
const STATUS: u64 = RAM + 0x5000;
const DATA: u64 = RAM + 0x1_0000;

const SECTORS: u64 = 64;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;

#[derive(Clone)]
struct Shared(Rc<RefCell<Transport>>);

impl Registers for Shared {
    fn read(&self, offset: u64) -> u32 {
        self.0.borrow_mut().server_read(offset)
    }

    fn write(&self, offset: u64, value: u32) {
        let _: Effect = self.0.borrow_mut().server_write(offset, value);
    }
}

/// A client, the server of its disk, and the disk's file.
struct Machine {
    registers: Shared,
    memory: GuestMemoryMmap,
    server: Server<Shared>,
    file: NamedTempFile,
    /// Requests so far.
    requests: u16,
}

fn disk(file: &NamedTempFile, read_only: bool) -> Disk {
    Disk::open(file.path(), read_only).expect("a disk")
}

impl Machine {
    /// A machine whose driver has negotiated features and has a queue.
    fn new(read_only: bool) -> Self {
        let mut file = NamedTempFile::new().expect("a file");
        // Half a sector is not part of the disk.
        file.write_all(&vec![7; (SECTORS * SECTOR + SECTOR / 2) as usize]).expect("a file's content");
        let registers = Shared(Rc::new(RefCell::new(Transport::new(2, 1 << 32, RAM_SIZE as u64, RAM))));
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(RAM), RAM_SIZE)]).expect("memory");
        let server = Server::new(registers.clone(), memory.clone(), disk(&file, read_only));
        let mut machine = Self { registers, memory, server, file, requests: 0 };
        machine.server.come_online();
        machine.start_driver();
        machine
    }

    fn store(&self, offset: u64, value: u32) {
        let _: Effect = self.registers.0.borrow_mut().write(offset, 4, value);
    }

    fn load(&self, offset: u64) -> u32 {
        self.registers.0.borrow().read(offset, 4).expect("the server is there")
    }

    fn start_driver(&mut self) {
        self.start_driver_at(DESCRIPTORS as u32);
    }

    /// Starts the driver with its descriptors at an address.
    fn start_driver_at(&mut self, descriptors: u32) {
        self.requests = 0;
        self.memory.write_slice(&[0; 0x4000], GuestAddress(RAM)).expect("RAM");
        self.store(client::STATUS, 3);
        self.store(client::DRIVER_FEATURES_SEL, 1);
        self.store(client::DRIVER_FEATURES, 1);
        self.store(client::STATUS, 11);
        self.store(client::QUEUE_SIZE, 8);
        let rings = [(client::QUEUE_DRIVER, AVAILABLE as u32), (client::QUEUE_DEVICE, USED as u32)];
        for (offset, address) in [(client::QUEUE_DESC, descriptors)].into_iter().chain(rings) {
            self.store(offset, address);
        }
        self.store(client::QUEUE_READY, 1);
        self.store(client::STATUS, 15);
        self.server.attend();
    }

    fn describe(&self, index: u64, (address, length): (u64, u32), flags: u16, next: u16) {
        let at = GuestAddress(DESCRIPTORS + 16 * index);
        let bytes = [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.memory.write_slice(&bytes, at).expect("a descriptor");
    }

    /// Offers the chain that begins at descriptor 0, without a kick.
    fn offer(&mut self) {
        let slot = GuestAddress(AVAILABLE + 4 + 2 * u64::from(self.requests % 8));
        self.memory.write_obj(0u16, slot).expect("the ring");
        self.requests += 1;
        self.memory.write_obj(self.requests, GuestAddress(AVAILABLE + 2)).expect("the ring");
    }

    /// Has the server answer one request with `length` bytes of data. Returns its status, and the length in the used ring.
    fn request(&mut self, kind: u32, sector: u64, length: u32) -> (u8, u32) {
        self.prepare(kind, sector, length);
        self.offer();
        self.store(client::QUEUE_NOTIFY, 0);
        self.server.attend();
        assert_eq!(self.used(), self.requests, "the request is answered");
        let entry = USED + 4 + 8 * u64::from((self.requests - 1) % 8);
        let written: u32 = self.memory.read_obj(GuestAddress(entry + 4)).expect("the ring");
        (self.memory.read_obj(GuestAddress(STATUS)).expect("a status"), written)
    }

    fn prepare(&self, kind: u32, sector: u64, length: u32) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write_slice(&header, GuestAddress(HEADER)).expect("a header");
        self.memory.write_obj(0xFFu8, GuestAddress(STATUS)).expect("a status");
        let to_device = if kind == WRITE { 0 } else { WRITABLE };
        self.describe(0, (HEADER, 16), NEXT, 1);
        self.describe(1, (DATA, length), to_device | NEXT, 2);
        self.describe(2, (STATUS, 1), WRITABLE, 0);
    }

    fn used(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).expect("the ring")
    }

    fn data(&self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read_slice(&mut data, GuestAddress(DATA)).expect("data");
        data
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(self.file.path()).expect("the disk's file")
    }
}

#[test]
fn data_is_written_and_read() {
    let mut machine = Machine::new(false);
    assert_eq!((machine.load(client::CONFIG), machine.load(client::CONFIG + 12)), (SECTORS as u32, u32::from(QUEUE_SIZE) - 2));
    let data: Vec<u8> = (0..2048u32).map(|n| (n * 7) as u8).collect();
    machine.memory.write_slice(&data, GuestAddress(DATA)).unwrap();
    assert_eq!(machine.request(WRITE, 3, 2048), (0, 1));
    assert_eq!(machine.content()[3 * 512..7 * 512], data);
    assert_eq!(machine.content()[7 * 512], 7);
    machine.memory.write_slice(&[0; 2048], GuestAddress(DATA)).unwrap();
    assert_eq!(machine.request(READ, 3, 2048), (0, 2049));
    assert_eq!(machine.data(2048), data);
    assert_eq!(machine.request(FLUSH, 0, 0), (0, 1));
    assert_eq!(machine.request(GET_ID, 0, 20), (0, 21));
    assert_eq!(&machine.data(13), b"stile-devices");
    assert_eq!(machine.load(client::INTERRUPT_STATUS), 1);
}

#[test]
fn impossible_requests_fail() {
    let mut machine = Machine::new(false);
    for (sector, length) in [(SECTORS, 512), (SECTORS - 1, 1024), (u64::MAX, 512), (u64::MAX / 512, 512), (0, 511)] {
        for kind in [READ, WRITE] {
            assert_eq!(machine.request(kind, sector, length).0, 1, "{kind} at {sector}, {length} bytes");
        }
    }
    assert_eq!(machine.request(77, 0, 512).0, 2, "unsupported");
    assert!(machine.content().iter().all(|byte| *byte == 7));
    let mut machine = Machine::new(true);
    assert_eq!(machine.request(WRITE, 0, 512).0, 1);
    assert_eq!(machine.request(READ, 0, 512), (0, 513));
}

#[test]
fn a_reset_is_acknowledged() {
    let mut machine = Machine::new(false);
    assert_eq!(machine.request(READ, 0, 512).0, 0);
    machine.offer();
    machine.store(client::STATUS, 0);
    assert!(!machine.registers.0.borrow().is_quiet());
    machine.server.attend();
    assert!(machine.registers.0.borrow().is_quiet());
    assert_eq!(machine.used(), 1, "the request is dropped");
    machine.start_driver();
    assert_eq!(machine.request(READ, 0, 512).0, 0);
}

#[test]
fn the_next_server_goes_on() {
    let mut machine = Machine::new(false);
    assert_eq!(machine.request(READ, 0, 512).0, 0);
    machine.prepare(READ, 0, 512);
    machine.offer();
    machine.store(client::QUEUE_NOTIFY, 0);
    // The first server is killed; the module takes the device offline.
    machine.registers.write(server::CONTROL, 0);
    machine.server = Server::new(machine.registers.clone(), machine.memory.clone(), disk(&machine.file, false));
    machine.server.come_online();
    machine.server.attend();
    assert_eq!(machine.used(), 2);
    assert_eq!(machine.request(READ, 0, 512).0, 0);
}

#[test]
fn a_client_that_is_off_is_noticed() {
    let mut machine = Machine::new(false);
    let _: Effect = machine.registers.0.borrow_mut().client_ended();
    machine.server.attend();
    assert!(machine.server.client_is_off());
    let _: Effect = machine.registers.0.borrow_mut().client_starts();
    machine.server.attend();
    assert!(!machine.server.client_is_off());
    machine.start_driver();
    assert_eq!(machine.request(READ, 0, 512).0, 0);
}

#[test]
fn queues_outside_of_memory_are_refused() {
    let mut machine = Machine::new(false);
    for bad in [0u32, 3, RAM as u32 + RAM_SIZE as u32 - 16] {
        machine.store(client::STATUS, 0);
        machine.server.attend();
        machine.start_driver_at(bad);
        assert_ne!(machine.load(client::STATUS) & 0x40, 0, "DEVICE_NEEDS_RESET with descriptors at {bad:#x}");
        machine.store(client::STATUS, 0);
        machine.server.attend();
    }
    machine.start_driver();
    assert_eq!(machine.request(READ, 0, 512).0, 0);
}

proptest! {
    /// The server returns for any content of the queue, and serves a driver that resets it again.
    #[test]
    fn hostile_queues_end_in_nothing_worse(
        rings in prop::collection::vec(any::<u8>(), 0x40),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, any::<u32>(), 0..8u16, 0..9u16), 8),
        index in any::<u16>(),
    ) {
        let mut machine = Machine::new(false);
        for (number, (address, length, flags, next)) in descriptors.into_iter().enumerate() {
            machine.describe(number as u64, (RAM + address, length >> (length % 32)), flags, next);
        }
        machine.memory.write_slice(&rings, GuestAddress(AVAILABLE)).unwrap();
        machine.memory.write_obj(index % 16, GuestAddress(AVAILABLE + 2)).unwrap();
        machine.store(client::QUEUE_NOTIFY, 0);
        machine.server.attend();
        machine.store(client::STATUS, 0);
        machine.server.attend();
        machine.start_driver();
        prop_assert_eq!(machine.request(READ, 0, 512), (0, 513));
    }
}
