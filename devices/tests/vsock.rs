//! Servers of sockets, of clients on Stile's model of the registers, with good and with hostile clients.

#[expect(dead_code, reason = "other tests use the rest")]
mod machine;

use std::os::fd::OwnedFd;

use machine::{DATA, DESCRIPTORS, Machine, RAM, RAM_SIZE, WRITABLE, available};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use stile_devices::Vsock;
use stile_devices::vsock::WAITING;
use stile_devices::vsock::packet::{CREDIT_REQUEST, CREDIT_UPDATE, HEADER, Header, REQUEST, RESPONSE, RST, RW, SHUTDOWN, STREAM};
use stile_virtio::client;
use vm_memory::{Bytes, GuestAddress};

const VSOCK: u32 = 19;
const RECEIVED: usize = 0;
const SENT: usize = 1;
const EVENTS: usize = 2;

/// Addresses of the clients, and their ports.
const CIDS: [u32; 2] = [3, 4];
const PORTS: [u32; 2] = [1000, 22];

/// Address of a queue's buffers: one for each descriptor.
const fn buffer(queue: usize, head: u16) -> u64 {
    DATA + 0x4_0000 * queue as u64 + 0x8000 * head as u64
}
const BUFFER: u32 = 0x1000;

fn pair() -> [OwnedFd; 2] {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets").into()
}

/// Number `client`'s sockets, with a link to the other one.
fn sockets(client: usize, link: &OwnedFd) -> Vsock {
    Vsock::new(CIDS[client], vec![(CIDS[1 - client], link.try_clone().expect("a file"))]).expect("sockets")
}

/// A client that takes its packets.
struct Client {
    machine: Machine<Vsock>,
    /// Packets that were taken.
    taken: u16,
}

impl Client {
    fn new(vsock: Vsock) -> Self {
        Self { machine: Machine::new(VSOCK, vsock, 0), taken: 0 }
    }

    /// Offers all buffers for received packets.
    fn offer_all(&mut self) {
        for head in 0..DESCRIPTORS {
            self.machine.describe(RECEIVED, head, (buffer(RECEIVED, head), BUFFER), WRITABLE, 0);
            self.machine.offer(RECEIVED, head);
        }
        self.machine.kick(RECEIVED);
    }

    /// Has the server take a packet.
    fn send(&mut self, header: Header, payload: &[u8]) {
        let bytes = [&header.bytes()[..], payload].concat();
        self.machine.memory.write_slice(&bytes, GuestAddress(buffer(SENT, 0))).expect("a packet");
        self.machine.describe(SENT, 0, (buffer(SENT, 0), bytes.len() as u32), 0, 0);
        self.machine.offer(SENT, 0);
        self.machine.kick(SENT);
    }

    /// The packets that have arrived, whose buffers are offered again.
    fn arrived(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut packets = Vec::new();
        // As long as there are messages, which need not be packets.
        (0..8).for_each(|_| self.machine.server.attend_backend());
        while self.taken != self.machine.used(RECEIVED) {
            let head = self.taken % DESCRIPTORS;
            let length = self.machine.written_at(RECEIVED, self.taken) as usize;
            let bytes = self.machine.bytes(buffer(RECEIVED, head), length);
            let header = Header::parse(bytes.first_chunk().expect("a header"));
            packets.push((header, bytes[HEADER..].to_vec()));
            self.machine.offer(RECEIVED, head);
            self.taken += 1;
            self.machine.kick(RECEIVED);
        }
        packets
    }

    fn ops(&mut self) -> Vec<u16> {
        self.arrived().into_iter().map(|(header, _)| header.op).collect()
    }
}

/// Two clients, with a socket between their processes.
struct Pair {
    clients: [Client; 2],
    links: [OwnedFd; 2],
}

impl Pair {
    fn new() -> Self {
        let links = pair();
        let mut clients = [0, 1].map(|client| Client::new(sockets(client, &links[client])));
        clients.iter_mut().for_each(Client::offer_all);
        let mut pair = Self { clients, links };
        pair.settle();
        pair
    }

    /// Drops what arrives.
    fn settle(&mut self) {
        while self.clients.iter_mut().map(|client| client.arrived().len()).sum::<usize>() != 0 {}
    }

    /// Number `from` sends a packet.
    fn send(&mut self, from: usize, op: u16, payload: &[u8]) {
        self.clients[from].send(header(from, op, payload.len()), payload);
    }

    fn connect(&mut self) {
        self.send(0, REQUEST, &[]);
        assert_eq!(self.clients[1].ops(), [REQUEST]);
        self.send(1, RESPONSE, &[]);
        assert_eq!(self.clients[0].ops(), [RESPONSE]);
    }

    /// Whether a connection of other ports works.
    fn works(&mut self) -> bool {
        let other = |from, op, payload: &[u8]| {
            let mut header = header(from, op, payload.len());
            if from == 0 {
                header.src_port += 7
            } else {
                header.dst_port += 7
            };
            header
        };
        let passed = [(0, REQUEST, &b""[..]), (1, RESPONSE, b""), (0, RW, b"hello"), (1, RW, b"world"), (1, RST, b"")];
        passed.into_iter().all(|(from, op, payload)| {
            let sent = other(from, op, payload);
            self.clients[from].send(sent, payload);
            self.clients[1 - from].arrived() == [(sent, payload.to_vec())]
        })
    }
}

/// Header of a packet from number `from` to the other one.
fn header(from: usize, op: u16, length: usize) -> Header {
    let to = 1 - from;
    Header {
        src_cid: CIDS[from].into(),
        dst_cid: CIDS[to].into(),
        src_port: PORTS[from],
        dst_port: PORTS[to],
        len: length as u32,
        kind: STREAM,
        op,
        flags: 0,
        buf_alloc: 1 << 18,
        fwd_cnt: 0,
    }
}

#[test]
fn clients_connect_and_exchange_bytes() {
    let mut pair = Pair::new();
    assert_eq!([0, 1].map(|client| pair.clients[client].machine.load(client::CONFIG)), CIDS);
    pair.connect();
    // It arrives in as many packets as its buffers need.
    let bytes: Vec<u8> = (0..20_000u32).map(|number| (number / 3) as u8).collect();
    pair.send(0, RW, &bytes);
    let mut arrived = Vec::new();
    loop {
        let packets = pair.clients[1].arrived();
        if packets.is_empty() {
            break;
        }
        for (header, payload) in packets {
            assert_eq!((header.op, header.len as usize, header.buf_alloc), (RW, payload.len(), 1 << 18));
            arrived.extend(payload);
        }
        // Room in the link for the rest.
        pair.clients[0].machine.server.attend_backend();
    }
    assert!(arrived == bytes);
    pair.send(1, CREDIT_UPDATE, &[]);
    pair.send(1, CREDIT_REQUEST, &[]);
    assert_eq!(pair.clients[0].ops(), [CREDIT_UPDATE, CREDIT_REQUEST]);
    pair.clients[0].send(Header { flags: 3, ..header(0, SHUTDOWN, 0) }, &[]);
    assert_eq!(pair.clients[1].arrived()[0].0, Header { flags: 3, ..header(0, SHUTDOWN, 0) });
    pair.send(1, RST, &[]);
    assert_eq!(pair.clients[0].ops(), [RST]);
    assert!(pair.works());
}

#[test]
fn packets_of_no_honest_driver_are_refused_or_dropped() {
    let mut pair = Pair::new();
    let refused = [
        Header { dst_cid: 2, ..header(0, REQUEST, 0) },
        Header { dst_cid: 3, ..header(0, REQUEST, 0) },
        Header { dst_cid: 1 << 32 | 4, ..header(0, REQUEST, 0) },
        Header { kind: 2, ..header(0, REQUEST, 0) },
        header(0, CREDIT_REQUEST + 1, 0),
        Header { len: 70_000, ..header(0, RW, 0) },
        // Its payload is missing.
        Header { len: 5, ..header(0, RW, 0) },
    ];
    for packet in refused {
        pair.clients[0].send(packet, &[]);
        assert_eq!(pair.clients[0].arrived(), [(packet.refusal(), Vec::new())], "{packet:?}");
    }
    // In another one's name; a refusal of a refusal; nothing.
    let dropped = [Header { src_cid: 4, ..header(0, REQUEST, 0) }, Header { dst_cid: 9, ..header(0, RST, 0) }, header(0, 0, 0)];
    for packet in dropped {
        pair.clients[0].send(packet, &[]);
        assert_eq!((pair.clients[0].ops(), pair.clients[1].ops()), (vec![], vec![]), "{packet:?}");
    }
    assert!(pair.works());
}

#[test]
fn a_peer_that_takes_nothing_holds_up_its_own_connections_only() {
    let links = [pair(), pair()];
    let file = |link: usize, end: usize| links[link][end].try_clone().expect("a file");
    let mut first = Client::new(Vsock::new(3, vec![(4, file(0, 0)), (5, file(1, 0))]).expect("sockets"));
    first.offer_all();
    // The second one has no process at all. The third one is well.
    let mut third = Client::new(Vsock::new(5, vec![(3, file(1, 1))]).expect("sockets"));
    third.offer_all();
    while first.ops().len() + third.ops().len() != 0 {}
    let chunk = vec![1; 16 << 10];
    let mut sent = 0;
    while first.arrived().is_empty() {
        first.send(header(0, RW, chunk.len()), &chunk);
        sent += chunk.len();
        assert!(sent < 2 * WAITING, "memory has a limit");
    }
    assert!(sent > WAITING / 4, "{sent}");
    // Nothing comes behind the gap.
    first.send(header(0, RW, 1), b"x");
    assert_eq!(first.ops(), [RST]);
    // Connections beyond those that fit are refused, and old ones that nobody has answered make room.
    for port in 0..200 {
        first.send(Header { src_port: port, ..header(0, CREDIT_UPDATE, 0) }, &[]);
    }
    let refused = first.ops().len();
    assert!((136..=138).contains(&refused), "{refused}");
    first.send(Header { src_port: 300, ..header(0, REQUEST, 0) }, &[]);
    assert!(first.ops().is_empty());
    let to_third = Header { dst_cid: 5, ..header(0, REQUEST, 0) };
    first.send(to_third, &[]);
    assert_eq!(third.arrived(), [(to_third, Vec::new())]);
}

#[test]
fn connections_end_with_a_process_or_a_driver() {
    let mut pair = Pair::new();
    pair.connect();
    // A process dies: both sides learn of it.
    let vsock = sockets(1, &pair.links[1]);
    let event = buffer(EVENTS, 0);
    pair.clients[1].machine.describe(EVENTS, 0, (event, 4), WRITABLE, 0);
    pair.clients[1].machine.offer(EVENTS, 0);
    pair.clients[1].machine.memory.write_obj(7u32, GuestAddress(event)).expect("RAM");
    pair.clients[1].machine.replace_server(vsock);
    assert_eq!((pair.clients[1].machine.used(EVENTS), pair.clients[1].machine.bytes(event, 4)), (1, vec![0; 4]));
    assert_eq!(
        pair.clients[0].arrived(),
        [(header(1, RST, 0), Vec::new())].map(|(header, bytes)| (Header { buf_alloc: 0, ..header }, bytes))
    );
    assert!(pair.works());
    // A driver resets its device.
    pair.connect();
    pair.clients[1].machine.reset();
    assert_eq!(pair.clients[0].ops(), [RST]);
    pair.clients[1].machine.start_driver();
    (pair.clients[1].taken, pair.clients[1].machine.offered) = (0, vec![0; 3]);
    pair.clients[1].offer_all();
    assert_eq!(pair.clients[1].machine.used(EVENTS), 0, "nothing of a new driver's was lost");
    pair.settle();
    assert!(pair.works());
}

proptest! {
    /// The servers return for any content of a client's queues. The other client gets packets of that one's address only, and both work again.
    #[test]
    fn hostile_queues_end_in_nothing_worse(
        rings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0x40), 3),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, any::<u32>(), 0..8u16, 0..9u16), 24),
        packets in prop::collection::vec((any::<[u8; HEADER]>(), any::<u8>(), 0..9u16), 8),
        indexes in prop::collection::vec(0..16u16, 3),
    ) {
        let mut pair = Pair::new();
        pair.connect();
        let machine = &mut pair.clients[0].machine;
        // Some are almost honest.
        for (head, (bytes, kept, op)) in (0..).zip(packets) {
            let honest = header(0, op, 10).bytes();
            let mixed: Vec<u8> = (0..HEADER).map(|at| if kept >> (at / 8 % 8) & 1 == 0 { honest[at] } else { bytes[at] }).collect();
            machine.memory.write_slice(&mixed, GuestAddress(buffer(SENT, head))).unwrap();
        }
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            let (queue, head) = (usize::from(number / 8), number % 8);
            let at = if flags & 4 == 0 { buffer(queue, head) } else { RAM + address };
            machine.describe(queue, head, (at, length >> (length % 32)), flags & 3, next);
        }
        for (queue, (ring, index)) in rings.iter().zip(indexes).enumerate() {
            machine.memory.write_slice(ring, GuestAddress(available(queue))).unwrap();
            machine.memory.write_obj(index, GuestAddress(available(queue) + 2)).unwrap();
        }
        (0..3).for_each(|queue| machine.kick(queue));
        for (header, _) in pair.clients[1].arrived() {
            prop_assert_eq!((header.src_cid, header.dst_cid), (3, 4));
        }
        pair.clients[0].machine.reset();
        pair.clients[0].machine.start_driver();
        pair.clients[0].taken = 0;
        pair.clients[0].offer_all();
        pair.settle();
        prop_assert!(pair.works());
    }
}
