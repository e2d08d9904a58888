//! Forwarded ports, with good and with hostile clients at the other end of the link.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{fs::File, thread};

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use stile_devices::vsock::forward::{Forward, HOST, Host};
use stile_devices::vsock::packet::{CREDIT_REQUEST, CREDIT_UPDATE, HEADER, Header, REQUEST, RESPONSE, RST, RW, SHUTDOWN, STREAM};
use stile_devices::vsock::stream::BUFFER;

const CID: u32 = 3;
const PORT: u32 = 22;

/// The process of the client's sockets.
struct Peer(File);

impl Peer {
    fn send(&self, header: &Header, payload: &[u8]) {
        let header = header.bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        // A link that is full takes no more.
        let _ = (&self.0).write_vectored(&parts);
    }

    /// The next packet, if there is one.
    fn receive(&self) -> Option<(Header, Vec<u8>)> {
        let (mut header, mut payload) = ([0; HEADER], vec![0; 1 << 16]);
        let length = (&self.0).read_vectored(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(&mut payload)]).ok()?;
        payload.truncate(length.saturating_sub(HEADER));
        // A shorter message says that all connections have ended.
        if length < HEADER { self.receive() } else { Some((Header::parse(&header), payload)) }
    }
}

struct Machine {
    host: Host,
    peer: Peer,
    port: u16,
}

impl Machine {
    fn new() -> Self {
        let [own, other]: [OwnedFd; 2] =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).expect("sockets").into();
        let forward = Forward::new(0, CID, PORT).expect("a port");
        let port = forward.own_port().expect("its number");
        Self { host: Host::new(vec![forward], vec![(CID, own)]).expect("a host"), peer: Peer(other.into()), port }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        stream
    }

    /// The next packet for the client.
    fn next(&mut self) -> (Header, Vec<u8>) {
        // The kernel passes bytes on between two sockets of this machine at once, or nearly so.
        for _ in 0..10_000 {
            self.host.serve();
            if let Some(packet) = self.peer.receive() {
                return packet;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("no packet comes");
    }

    /// A connection that the client has accepted, with this credit; and the header of packets of the client's.
    fn accepted(&mut self, buf_alloc: u32) -> (TcpStream, Header) {
        let stream = self.connect();
        let (request, payload) = self.next();
        assert_eq!((request.op, request.src_cid, request.dst_cid, request.dst_port), (REQUEST, HOST.into(), CID.into(), PORT));
        assert_eq!((request.buf_alloc as usize, payload.len()), (BUFFER, 0));
        let own = Header { op: RESPONSE, buf_alloc, kind: STREAM, ..request.refusal() };
        self.peer.send(&own, &[]);
        (stream, own)
    }

    /// Whether another connection works.
    fn works(&mut self) -> bool {
        while self.peer.receive().is_some() {}
        let (mut stream, own) = self.accepted(1 << 18);
        stream.write_all(b"hello").expect("room");
        let (sent, bytes) = self.next();
        self.peer.send(&Header { op: RW, len: 5, ..own }, b"world");
        self.host.serve();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("an answer");
        self.peer.send(&Header { op: RST, ..own }, &[]);
        self.host.serve();
        (sent.op, &bytes[..], &answer) == (RW, b"hello", b"world") && stream.read(&mut answer).expect("an end") == 0
    }
}

#[test]
fn bytes_are_passed_on_until_both_ends_have_ended() {
    let mut machine = Machine::new();
    assert!(machine.works());
    let (mut stream, own) = machine.accepted(1 << 18);
    let bytes: Vec<u8> = (0..100_000u32).map(|number| (number / 3) as u8).collect();
    stream.write_all(&bytes).expect("room");
    stream.shutdown(Shutdown::Write).expect("an end");
    let mut arrived = Vec::new();
    let end = loop {
        match machine.next() {
            (Header { op: RW, .. }, payload) => arrived.extend(payload),
            (end, _) => break end,
        }
    };
    assert!(arrived == bytes);
    assert_eq!((end.op, end.flags), (SHUTDOWN, 2));
    // The client still sends, and is told what was taken.
    for chunk in bytes.chunks(10_000).take(4) {
        machine.peer.send(&Header { op: RW, len: chunk.len() as u32, ..own }, chunk);
    }
    let (update, _) = machine.next();
    assert_eq!((update.op, update.fwd_cnt), (CREDIT_UPDATE, 40_000));
    machine.peer.send(&Header { op: CREDIT_REQUEST, ..own }, &[]);
    assert_eq!(machine.next().0.op, CREDIT_UPDATE);
    machine.peer.send(&Header { op: SHUTDOWN, flags: 3, ..own }, &[]);
    assert_eq!(machine.next().0.op, RST);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end");
    assert!(answer == bytes[..40_000]);
    assert_eq!(machine.host.connections(), 0);
}

#[test]
fn no_more_is_sent_than_the_client_has_room_for() {
    let mut machine = Machine::new();
    let (mut stream, own) = machine.accepted(10);
    stream.write_all(&[7; 15]).expect("room");
    assert_eq!(machine.next().1.len(), 10);
    (0..20).for_each(|_| machine.host.serve());
    assert!(machine.peer.receive().is_none());
    machine.peer.send(&Header { op: CREDIT_UPDATE, fwd_cnt: 10, ..own }, &[]);
    assert_eq!(machine.next().1.len(), 5);
    // More than was sent can't be taken: it gets nothing.
    machine.peer.send(&Header { op: CREDIT_UPDATE, fwd_cnt: 16, ..own }, &[]);
    stream.write_all(&[7; 15]).expect("room");
    (0..20).for_each(|_| machine.host.serve());
    assert!(machine.peer.receive().is_none());
    drop(stream);
    assert!(machine.works());
}

#[test]
fn a_client_that_sends_more_than_its_credit_is_reset() {
    let mut machine = Machine::new();
    let (mut stream, own) = machine.accepted(1 << 18);
    machine.host.serve();
    let chunk = vec![1; 16 << 10];
    (0..5).for_each(|_| machine.peer.send(&Header { op: RW, len: chunk.len() as u32, ..own }, &chunk));
    assert_eq!(machine.next().0.op, RST);
    assert!(stream.read_to_end(&mut Vec::new()).is_ok_and(|length| length <= BUFFER) && machine.host.connections() == 0);
    assert!(machine.works());
}

#[test]
fn connections_that_nobody_answers_have_a_limit() {
    let mut machine = Machine::new();
    let streams: Vec<TcpStream> = (0..40).map(|_| machine.connect()).collect();
    (0..100).for_each(|_| machine.host.serve());
    assert_eq!(machine.host.connections(), 32);
    let first = machine.next().0;
    // One that ends makes room.
    machine.peer.send(&Header { op: RST, ..first.refusal() }, &[]);
    (0..100).for_each(|_| machine.host.serve());
    assert_eq!(machine.host.connections(), 32);
    // All end with the client's process.
    (&machine.peer.0).write_all(&[0]).expect("room");
    machine.host.serve();
    assert_eq!(machine.host.connections(), 0);
    drop(streams);
    // Those that have waited are accepted, and found ended once they are answered.
    (0..20).for_each(|_| machine.host.serve());
    (&machine.peer.0).write_all(&[0]).expect("room");
    machine.host.serve();
    assert!(machine.works());
}

#[test]
fn a_client_cannot_connect() {
    let mut machine = Machine::new();
    let request =
        Header { src_cid: CID.into(), dst_cid: HOST.into(), src_port: 5, dst_port: 6, kind: STREAM, op: REQUEST, ..Header::default() };
    machine.peer.send(&request, &[]);
    assert_eq!(machine.next(), (request.refusal(), Vec::new()));
    // With another one's address, to another one's address, and of an unknown type.
    for other in [Header { src_cid: 4, ..request }, Header { dst_cid: 4, ..request }, Header { kind: 2, ..request }] {
        machine.peer.send(&other, &[]);
    }
    (0..20).for_each(|_| machine.host.serve());
    assert!(machine.peer.receive().is_none());
    assert!(machine.works());
}

proptest! {
    /// Any packets of a client end in nothing worse than the end of its connections.
    #[test]
    fn hostile_packets_end_in_nothing_worse(
        packets in prop::collection::vec((0..9u16, 0..5u32, any::<u32>(), any::<u32>(), 0..3usize, 0..3u32), 0..40),
    ) {
        let mut machine = Machine::new();
        let (mut stream, own) = machine.accepted(1 << 18);
        for (number, (op, flags, buf_alloc, fwd_cnt, size, other)) in packets.into_iter().enumerate() {
            let payload = vec![number as u8; [0, 10, 16 << 10][size]];
            let header = Header { op, flags, buf_alloc, fwd_cnt, len: payload.len() as u32, dst_port: own.dst_port + other / 2, ..own };
            machine.peer.send(&header, &payload);
            let _ = stream.write(&payload);
            machine.host.serve();
            while machine.peer.receive().is_some() {}
        }
        drop(stream);
        (0..3).for_each(|_| machine.host.serve());
        (&machine.peer.0).write_all(&[0]).expect("room");
        machine.host.serve();
        prop_assert_eq!(machine.host.connections(), 0);
        prop_assert!(machine.works());
    }
}
