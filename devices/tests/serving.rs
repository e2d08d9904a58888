//! A server of a disk on Stile's model of the registers, with good and with hostile clients.

mod machine;

use std::io::Write;

use machine::{DATA, Machine, NEXT, RAM, RAM_SIZE, WRITABLE, available};
use proptest::prelude::*;
use stile_devices::{Disk, FailedDisk, QUEUE_SIZE, SECTOR, Server};
use stile_virtio::{Transport, client};
use tempfile::NamedTempFile;
use vm_memory::{Bytes, GuestAddress};

/// Header, status and data of requests.
const HEADER: u64 = RAM + 0x4000;
const STATUS: u64 = RAM + 0x5000;

const SECTORS: u64 = 64;
const BLOCK: u32 = 2;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

/// A client with a disk, and the disk's file.
struct WithDisk {
    machine: Machine<Disk>,
    file: NamedTempFile,
}

fn disk(file: &NamedTempFile, read_only: bool) -> Disk {
    Disk::open(file.path(), read_only).expect("a disk")
}

impl WithDisk {
    fn new(read_only: bool) -> Self {
        Self::with_sectors(SECTORS, read_only)
    }

    fn with_sectors(sectors: u64, read_only: bool) -> Self {
        let mut file = NamedTempFile::new().expect("a file");
        // Half a sector is not part of the disk.
        file.write_all(&vec![7; (sectors * SECTOR + SECTOR / 2) as usize]).expect("a file's content");
        Self { machine: Machine::new(BLOCK, disk(&file, read_only), 0), file }
    }

    /// Has the server answer one request with `length` bytes of data. Returns its status, and the length in the used ring.
    fn request(&mut self, kind: u32, sector: u64, length: u32) -> (u8, u32) {
        self.prepare(kind, sector, length);
        self.machine.offer(0, 0);
        self.machine.kick(0);
        assert_eq!(self.machine.used(0), self.machine.offered[0], "the request is answered");
        (self.machine.bytes(STATUS, 1)[0], self.machine.written(0))
    }

    fn prepare(&self, kind: u32, sector: u64, length: u32) {
        let machine = &self.machine;
        self.prepare_header(0, kind, sector);
        let to_device = if kind == WRITE { 0 } else { WRITABLE };
        machine.describe(0, 0, (HEADER, 16), NEXT, 1);
        machine.describe(0, 1, (DATA, length), to_device | NEXT, 2);
        machine.describe(0, 2, (STATUS, 1), WRITABLE, 0);
    }

    /// Stores the header of the request with this number, and a status that no device writes.
    fn prepare_header(&self, number: u64, kind: u32, sector: u64) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.machine.memory.write_slice(&header, GuestAddress(HEADER + 16 * number)).expect("a header");
        self.machine.memory.write_obj(0xFFu8, GuestAddress(STATUS + number)).expect("a status");
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(self.file.path()).expect("the disk's file")
    }
}

#[test]
fn data_is_written_and_read() {
    let mut client = WithDisk::new(false);
    let machine = &client.machine;
    assert_eq!((machine.load(client::CONFIG), machine.load(client::CONFIG + 12)), (SECTORS as u32, u32::from(QUEUE_SIZE) - 2));
    let data: Vec<u8> = (0..2048u32).map(|n| (n * 7) as u8).collect();
    machine.memory.write_slice(&data, GuestAddress(DATA)).unwrap();
    assert_eq!(client.request(WRITE, 3, 2048), (0, 1));
    assert_eq!(client.content()[3 * 512..7 * 512], data);
    assert_eq!(client.content()[7 * 512], 7);
    client.machine.memory.write_slice(&[0; 2048], GuestAddress(DATA)).unwrap();
    assert_eq!(client.request(READ, 3, 2048), (0, 2049));
    assert_eq!(client.machine.bytes(DATA, 2048), data);
    assert_eq!(client.request(FLUSH, 0, 0), (0, 1));
    assert_eq!(client.request(GET_ID, 0, 20), (0, 21));
    assert_eq!(&client.machine.bytes(DATA, 13), b"stile-devices");
    assert_eq!(client.machine.load(client::INTERRUPT_STATUS), 1);
}

/// Two reads with a write and a flush between them, which are offered together.
#[test]
fn requests_at_once_are_answered_in_their_order() {
    let mut client = WithDisk::new(false);
    let machine = &mut client.machine;
    machine.memory.write_slice(&[9; 512], GuestAddress(DATA)).unwrap();
    for (head, header, data) in [(0, HEADER, Some((DATA + 0x1000, WRITABLE))), (3, HEADER + 16, Some((DATA, 0))), (6, HEADER + 32, None)] {
        machine.describe(0, head, (header, 16), NEXT, head + 1);
        if let Some((data, flags)) = data {
            machine.describe(0, head + 1, (data, 512), flags | NEXT, head + 2);
        }
        let status = (STATUS + u64::from(head / 3), 1);
        machine.describe(0, head + if data.is_some() { 2 } else { 1 }, status, WRITABLE, 0);
        machine.offer(0, head);
    }
    for (number, (kind, sector)) in (0..).zip([(READ, 5), (WRITE, 3), (FLUSH, 0)]) {
        client.prepare_header(number, kind, sector);
    }
    client.machine.kick(0);
    assert_eq!((client.machine.used(0), client.machine.bytes(STATUS, 3)), (3, vec![0; 3]));
    assert_eq!([0, 1, 2].map(|index| client.machine.written_at(0, index)), [513, 1, 1]);
    assert_eq!(client.machine.bytes(DATA + 0x1000, 512), [7; 512]);
    assert_eq!(client.content()[3 * 512..4 * 512], [9; 512]);
}

#[test]
fn requests_can_be_larger_than_the_server_s_buffer() {
    const PART: u32 = 512 << 10;
    let mut client = WithDisk::with_sectors(4096, false);
    for (kind, flags, written) in [(WRITE, 0, 1), (READ, WRITABLE, 3 * PART + 1)] {
        let fill = if kind == WRITE { 9 } else { 0 };
        client.machine.memory.write_slice(&vec![fill; PART as usize], GuestAddress(DATA)).unwrap();
        client.prepare_header(0, kind, 8);
        // A header of two parts, and data of three at the same place.
        client.machine.describe(0, 0, (HEADER, 8), NEXT, 1);
        client.machine.describe(0, 1, (HEADER + 8, 8), NEXT, 2);
        for part in 2..5 {
            client.machine.describe(0, part, (DATA, PART), flags | NEXT, part + 1);
        }
        client.machine.describe(0, 5, (STATUS, 1), WRITABLE, 0);
        client.machine.offer(0, 0);
        client.machine.kick(0);
        assert_eq!((client.machine.bytes(STATUS, 1)[0], client.machine.written(0)), (0, written), "{kind}");
        assert!(client.machine.bytes(DATA, PART as usize).iter().all(|byte| *byte == 9));
    }
    let end = 8 * 512 + 3 * PART as usize;
    let content = client.content();
    assert!(content[8 * 512..end].iter().all(|byte| *byte == 9) && content[8 * 512 - 1] == 7 && content[end] == 7);
}

#[test]
fn data_that_is_not_in_memory_is_not_written() {
    let mut client = WithDisk::new(false);
    for (data, status) in [((DATA, 512), 0), ((RAM + RAM_SIZE as u64 - 256, 512), 1), ((0, 512), 1)] {
        client.prepare_header(0, WRITE, 0);
        client.machine.describe(0, 0, (HEADER, 16), NEXT, 1);
        client.machine.describe(0, 1, (DATA, 512), NEXT, 2);
        client.machine.describe(0, 2, data, NEXT, 3);
        client.machine.describe(0, 3, (STATUS, 1), WRITABLE, 0);
        client.machine.memory.write_slice(&[8 + status; 512], GuestAddress(DATA)).unwrap();
        client.machine.offer(0, 0);
        client.machine.kick(0);
        assert_eq!(client.machine.bytes(STATUS, 1)[0], status, "{data:x?}");
        assert_eq!(client.content()[..1024], [8; 1024]);
    }
}

/// An indirect table with more descriptors than the driver was told of.
#[test]
fn requests_of_too_many_parts_fail() {
    const INDIRECT: u16 = 4;
    let mut client = WithDisk::new(false);
    for (data, status) in [(QUEUE_SIZE - 2, 0), (QUEUE_SIZE - 1, 1)] {
        client.prepare_header(0, READ, 0);
        let parts = u64::from(data) + 2;
        for number in 0..parts {
            let (address, length, flags) = match number {
                0 => (HEADER, 16, NEXT),
                last if last == parts - 1 => (STATUS, 1, WRITABLE),
                // The first ones hold a sector.
                1..5 => (DATA, 128, WRITABLE | NEXT),
                _ => (DATA, 0, WRITABLE | NEXT),
            };
            let next = number as u16 + 1;
            let bytes = [&address.to_le_bytes()[..], &u32::to_le_bytes(length), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
            client.machine.memory.write_slice(&bytes, GuestAddress(RAM + 0x2_0000 + 16 * number)).expect("a descriptor");
        }
        client.machine.describe(0, 0, (RAM + 0x2_0000, 16 * parts as u32), INDIRECT, 0);
        client.machine.offer(0, 0);
        client.machine.kick(0);
        assert_eq!(client.machine.bytes(STATUS, 1)[0], status, "{data} parts of data");
    }
}

#[test]
fn impossible_requests_fail() {
    let mut client = WithDisk::new(false);
    for (sector, length) in [(SECTORS, 512), (SECTORS - 1, 1024), (u64::MAX, 512), (u64::MAX / 512, 512), (0, 511)] {
        for kind in [READ, WRITE] {
            assert_eq!(client.request(kind, sector, length).0, 1, "{kind} at {sector}, {length} bytes");
        }
    }
    assert_eq!(client.request(77, 0, 512).0, 2, "unsupported");
    assert!(client.content().iter().all(|byte| *byte == 7));
    let mut client = WithDisk::new(true);
    assert_eq!(client.request(WRITE, 0, 512).0, 1);
    assert_eq!(client.request(READ, 0, 512), (0, 513));
}

#[test]
fn requests_under_way_fail_when_the_disk_is_given_up() {
    let mut client = WithDisk::new(false);
    assert_eq!(client.request(READ, 0, 512).0, 0);
    client.prepare(READ, 0, 512);
    client.machine.offer(0, 0);
    let machine = &client.machine;
    let mut server = Server::new(machine.registers.clone(), machine.memory.clone(), FailedDisk { read_only: false });
    server.come_online();
    server.attend();
    assert_eq!((machine.used(0), machine.bytes(STATUS, 1)[0]), (2, 1));
    assert_eq!(machine.load(client::CONFIG), SECTORS as u32, "the driver goes on with the same disk");
}

#[test]
fn a_disk_that_was_never_served_is_empty() {
    let machine = Machine::new(BLOCK, FailedDisk { read_only: true }, 0);
    assert_eq!((machine.load(client::CONFIG), machine.load(client::CONFIG + 20)), (0, SECTOR as u32));
}

#[test]
fn a_reset_is_acknowledged() {
    let mut client = WithDisk::new(false);
    assert_eq!(client.request(READ, 0, 512).0, 0);
    client.machine.offer(0, 0);
    client.machine.store(client::STATUS, 0);
    assert!(!client.machine.transport().is_quiet());
    client.machine.server.attend();
    assert!(client.machine.transport().is_quiet());
    assert_eq!(client.machine.used(0), 1, "the request is dropped");
    client.machine.start_driver();
    assert_eq!(client.request(READ, 0, 512).0, 0);
}

#[test]
fn the_next_server_goes_on() {
    let mut client = WithDisk::new(false);
    assert_eq!(client.request(READ, 0, 512).0, 0);
    client.prepare(READ, 0, 512);
    client.machine.offer(0, 0);
    client.machine.store(client::QUEUE_NOTIFY, 0);
    let next = disk(&client.file, false);
    client.machine.replace_server(next);
    assert_eq!(client.machine.used(0), 2);
    assert_eq!(client.request(READ, 0, 512).0, 0);
}

/// The one before has used buffers, and was killed before it interrupted the client.
#[test]
fn the_next_server_interrupts_for_the_one_before() {
    let mut client = WithDisk::new(false);
    assert_eq!(client.request(READ, 0, 512).0, 0);
    client.machine.store(client::INTERRUPT_ACK, 1);
    assert_eq!(client.machine.load(client::INTERRUPT_STATUS), 0);
    let next = disk(&client.file, false);
    client.machine.replace_server(next);
    assert_eq!(client.machine.load(client::INTERRUPT_STATUS), 1);
}

#[test]
fn a_client_that_is_off_is_noticed() {
    let mut client = WithDisk::new(false);
    client.machine.change(Transport::client_ended);
    client.machine.server.attend();
    assert!(client.machine.server.client_is_off());
    client.machine.change(Transport::client_starts);
    client.machine.server.attend();
    assert!(!client.machine.server.client_is_off());
    client.machine.start_driver();
    assert_eq!(client.request(READ, 0, 512).0, 0);
}

#[test]
fn queues_outside_of_memory_are_refused() {
    let mut client = WithDisk::new(false);
    for bad in [0u32, 3, RAM as u32 + RAM_SIZE as u32 - 16] {
        client.machine.reset();
        client.machine.start_driver_at(bad);
        assert_ne!(client.machine.load(client::STATUS) & 0x40, 0, "DEVICE_NEEDS_RESET with descriptors at {bad:#x}");
        client.machine.reset();
    }
    client.machine.start_driver();
    assert_eq!(client.request(READ, 0, 512).0, 0);
}

proptest! {
    /// The server returns for any content of the queue, and serves a driver that resets it again.
    #[test]
    fn hostile_queues_end_in_nothing_worse(
        rings in prop::collection::vec(any::<u8>(), 0x40),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, any::<u32>(), 0..8u16, 0..9u16), 8),
        index in any::<u16>(),
    ) {
        let mut client = WithDisk::new(false);
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            client.machine.describe(0, number, (RAM + address, length >> (length % 32)), flags, next);
        }
        client.machine.memory.write_slice(&rings, GuestAddress(available(0))).unwrap();
        client.machine.memory.write_obj(index % 16, GuestAddress(available(0) + 2)).unwrap();
        client.machine.kick(0);
        client.machine.reset();
        client.machine.start_driver();
        prop_assert_eq!(client.request(READ, 0, 512), (0, 513));
    }
}
