//! A server of a network card on Stile's model of the registers, with good and with hostile clients.

mod machine;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use machine::{DATA, DESCRIPTORS, Machine, NEXT, RAM, RAM_SIZE, WRITABLE, available};
use proptest::prelude::*;
use stile_devices::{HEADER, Identity, Mac, Network, Port, Server, Unplugged};
use stile_virtio::client;
use vm_memory::{Bytes, GuestAddress};

const NET: u32 = 1;
const RECEIVED: usize = 0;
const SENT: usize = 1;
const GUEST_CSUM: u32 = 1 << 1;

const MAC: Mac = [0x52, 0x54, 0, 0x73, 0x76, 1];
const CLIENT: Identity = Identity { mac: MAC, ip: None };
const OTHER: Mac = [0x52, 0x54, 0, 0x73, 0x76, 2];

/// A port of a switch whose other side is the test.
#[derive(Clone, Default)]
struct Wire(Rc<RefCell<Frames>>);

#[derive(Default)]
struct Frames {
    sent: Vec<Vec<u8>>,
    waiting: VecDeque<Vec<u8>>,
    partial_checksums: Option<bool>,
}

impl Port for Wire {
    fn send(&mut self, frame: &[u8]) {
        self.0.borrow_mut().sent.push(frame.to_vec());
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let frame = self.0.borrow_mut().waiting.pop_front()?;
        let length = frame.len().min(buffer.len());
        buffer[..length].copy_from_slice(&frame[..length]);
        Some(length)
    }

    fn accept_partial_checksums(&mut self, accepted: bool) -> io::Result<()> {
        self.0.borrow_mut().partial_checksums = Some(accepted);
        Ok(())
    }
}

/// A frame with a header of `flags` and a type of segmentation.
fn frame((flags, segmentation): (u8, u8), source: Mac, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER];
    [header[0], header[1]] = [flags, segmentation];
    [&header[..], &OTHER, &source, &[0x08, 0], payload].concat()
}

struct WithCard {
    machine: Machine<Network<Wire>>,
    wire: Wire,
}

impl WithCard {
    fn new(features: u32) -> Self {
        let wire = Wire::default();
        Self { machine: Machine::new(NET, Network::new(wire.clone(), CLIENT), features), wire }
    }

    /// Has the server take a frame, in two buffers, and returns it as the wire gets it.
    fn send(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let machine = &mut self.machine;
        machine.memory.write_slice(frame, GuestAddress(DATA)).expect("a frame");
        let first = frame.len().min(HEADER) as u32;
        machine.describe(SENT, 0, (DATA, first), NEXT, 1);
        machine.describe(SENT, 1, (DATA + u64::from(first), frame.len() as u32 - first), 0, 0);
        machine.offer(SENT, 0);
        machine.kick(SENT);
        assert_eq!(machine.used(SENT), machine.offered[SENT], "the buffer is used");
        self.wire.0.borrow_mut().sent.pop()
    }

    /// Offers a buffer for a received frame.
    fn offer(&mut self, length: u32) {
        self.machine.describe(RECEIVED, 0, (DATA, length), WRITABLE, 0);
        self.machine.offer(RECEIVED, 0);
        self.machine.kick(RECEIVED);
    }

    /// A frame comes by the wire.
    fn arrive(&mut self, frame: Vec<u8>) {
        self.wire.0.borrow_mut().waiting.push_back(frame);
        if self.machine.server.backend().waits_for().is_some() {
            self.machine.server.attend_backend();
        }
    }

    fn works(&mut self) -> bool {
        let sent = frame((0, 0), MAC, b"hello");
        if self.send(&sent) != Some(sent) {
            return false;
        }
        let before = self.machine.used(RECEIVED);
        self.offer(100);
        self.arrive(frame((0, 0), OTHER, b"hello"));
        self.machine.used(RECEIVED) == before + 1 && &self.machine.bytes(DATA + 26, 5) == b"hello"
    }
}

#[test]
fn the_link_goes_down_when_the_card_is_given_up() {
    let mut client = WithCard::new(0);
    let link = client.machine.load(client::CONFIG + 4) >> 16;
    assert_eq!(link, 1);
    let machine = &client.machine;
    let mut server = Server::new(machine.registers.clone(), machine.memory.clone(), Network::new(Unplugged, CLIENT));
    server.come_online();
    assert_eq!((machine.load(client::CONFIG + 4) >> 16, machine.load(client::INTERRUPT_STATUS)), (0, 3));
    client.machine.server = Server::new(machine.registers.clone(), machine.memory.clone(), Network::new(client.wire.clone(), CLIENT));
    client.machine.server.come_online();
    assert_eq!(client.machine.load(client::CONFIG + 4) >> 16, 1);
}

#[test]
fn frames_pass_in_both_directions() {
    let mut client = WithCard::new(GUEST_CSUM);
    assert_eq!(client.machine.load(client::CONFIG), u32::from_le_bytes([0x52, 0x54, 0, 0x73]));
    assert_eq!(client.machine.load(client::CONFIG + 4), u32::from_le_bytes([0x76, 1, 1, 0]), "the link is up");
    assert_eq!(client.wire.0.borrow().partial_checksums, Some(true));
    let sent = frame((1, 1), MAC, &[5; 60_000]);
    assert_eq!(client.send(&sent), Some(sent));
    client.offer(2000);
    assert!(client.machine.server.backend().waits_for().is_some());
    client.arrive(frame((2, 0), OTHER, &[6; 1500]));
    assert_eq!((client.machine.used(RECEIVED), client.machine.written(RECEIVED)), (1, 1526));
    assert_eq!(client.machine.load(client::INTERRUPT_STATUS), 1);
    let mut expected = frame((2, 0), OTHER, &[6; 1500]);
    expected[10] = 1;
    assert_eq!(client.machine.bytes(DATA, 1526), expected);
}

#[test]
fn frames_wait_for_buffers() {
    let mut client = WithCard::new(0);
    assert_eq!(client.wire.0.borrow().partial_checksums, Some(false));
    assert!(client.machine.server.backend().waits_for().is_none(), "frames stay where they are");
    client.arrive(frame((2, 0), OTHER, b"first"));
    client.arrive(frame((0, 0), OTHER, b"second"));
    client.offer(100);
    assert_eq!((client.machine.used(RECEIVED), &client.machine.bytes(DATA + 26, 5)[..]), (1, &b"first"[..]));
    assert_eq!(client.machine.bytes(DATA, 1), [0], "checksums are none of this driver's business");
    client.offer(100);
    assert_eq!((client.machine.used(RECEIVED), &client.machine.bytes(DATA + 26, 6)[..]), (2, &b"second"[..]));
    // One that does not fit is dropped.
    client.offer(30);
    client.arrive(frame((0, 0), OTHER, b"too long"));
    assert_eq!((client.machine.used(RECEIVED), client.machine.written(RECEIVED)), (3, 0));
    assert!(client.works());
}

#[test]
fn frames_of_others_are_dropped() {
    let mut client = WithCard::new(0);
    assert_eq!(client.send(&frame((0, 0), OTHER, b"not mine")), None);
    assert_eq!(client.send(&frame((0, 3), MAC, b"datagrams in one")), None);
    assert_eq!(client.send(&frame((0, 0x81), MAC, b"with ECN")), None);
    assert_eq!(client.send(&frame((0, 0), MAC, b"")[..25]), None, "less than addresses");
    assert_eq!(client.send(&[]), None);
    assert_eq!(client.send(&frame((0, 0), MAC, &[0; 70_000])), None, "longer than any");
    assert_eq!(client.send(&frame((0xFF, 0), MAC, b"flags")), Some(frame((1, 0), MAC, b"flags")));
    assert!(client.works());
}

#[test]
fn a_flood_is_taken_in_batches() {
    let mut client = WithCard::new(0);
    for head in 0..DESCRIPTORS {
        client.machine.describe(RECEIVED, head, (DATA + 0x1000 * u64::from(head), 100), WRITABLE, 0);
        client.machine.offer(RECEIVED, head);
    }
    client.machine.kick(RECEIVED);
    client.wire.0.borrow_mut().waiting.extend((0..1000).map(|_| frame((0, 0), OTHER, b"flood")));
    client.machine.server.attend_backend();
    assert_eq!(client.machine.used(RECEIVED), DESCRIPTORS);
    assert_eq!(client.wire.0.borrow().waiting.len(), 1000 - usize::from(DESCRIPTORS), "the rest waits for buffers");
    client.machine.reset();
    client.wire.0.borrow_mut().waiting.clear();
    client.machine.start_driver();
    assert!(client.works());
}

#[test]
fn the_next_server_goes_on() {
    let mut client = WithCard::new(0);
    assert!(client.works());
    client.offer(100);
    client.machine.replace_server(Network::new(client.wire.clone(), CLIENT));
    client.arrive(frame((0, 0), OTHER, b"again"));
    assert_eq!((client.machine.used(RECEIVED), &client.machine.bytes(DATA + 26, 5)[..]), (2, &b"again"[..]));
    assert!(client.works());
}

proptest! {
    /// The server returns for any content of both queues, and serves a driver that resets it again. No frame has another's address.
    #[test]
    fn hostile_queues_end_in_nothing_worse(
        rings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0x40), 2),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, any::<u32>(), 0..8u16, 0..9u16), 16),
        indexes in prop::collection::vec(0..16u16, 2),
        frames in prop::collection::vec(0..2000usize, 0..20),
    ) {
        let mut client = WithCard::new(0);
        client.wire.0.borrow_mut().waiting.extend(frames.into_iter().map(|length| vec![3; length]));
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            client.machine.describe(usize::from(number / 8), number % 8, (RAM + address, length >> (length % 32)), flags, next);
        }
        for (queue, (ring, index)) in rings.iter().zip(indexes).enumerate() {
            client.machine.memory.write_slice(ring, GuestAddress(available(queue))).unwrap();
            client.machine.memory.write_obj(index, GuestAddress(available(queue) + 2)).unwrap();
        }
        client.machine.kick(SENT);
        client.machine.kick(RECEIVED);
        for frame in &client.wire.0.borrow().sent {
            prop_assert_eq!(&frame[HEADER + 6..HEADER + 12], &MAC[..]);
        }
        client.machine.reset();
        client.wire.0.borrow_mut().waiting.clear();
        client.wire.0.borrow_mut().sent.clear();
        client.machine.start_driver();
        prop_assert!(client.works());
    }
}
