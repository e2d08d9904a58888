//! Replies of a vhost-user back end to the process of a device.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use stile_devices::{Backend, DISK, VhostUser};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Any replies, as of a back end that a client has taken over.
pub const REPLIES: Target = Target {
    name: "vhost-user",
    run: replies,
    seeds,
    mutations: 1000,
    marks: &["connected", "refused", "configuration", "started", "stopped", "not stopped"],
};

/// The client's RAM.
const BASE: u64 = 0x4000_0000;
const SIZE: usize = 0x4000;

/// Flags of a reply: version 1 of the protocol, and the reply flag.
const REPLY: u8 = 1 | 1 << 2;

/// Length byte of a reply whose header states another length: a word after it.
const LIE: u8 = 0xff;

/// Connects to a back end with any replies, which are sent before the questions, then starts and stops a queue: the process returns, and
/// offers its client no more than a disk has.
fn replies(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (own, mut back_end) = UnixStream::pair().expect("sockets");
    let mut all = Vec::new();
    while !input.is_empty() {
        let (request, flags, length) = (input.byte(), input.byte(), input.byte());
        let size = if length == LIE { input.word() } else { length.into() };
        let header = [u32::from(request), flags.into(), size].map(u32::to_le_bytes).concat();
        all.extend([&header[..], input.take(length.into())].concat());
    }
    // At once: a socket has room for few messages, however short, and nobody reads them yet.
    back_end.write_all(&all).expect("room in the socket");
    // With the end of the replies, the front end waits for none.
    back_end.shutdown(Shutdown::Write).expect("an end");
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), SIZE)]).expect("memory");
    let window = tempfile::tempfile().expect("a file");
    let Ok(mut front_end) = VhostUser::<1>::new(own, DISK, &memory, &window) else { return reach("refused") };
    reach("connected");
    assert_eq!(front_end.features() & !DISK.features, 0, "features that a disk does not have");
    let configuration = front_end.configuration();
    if !configuration.is_empty() {
        reach("configuration");
    }
    assert!(configuration.iter().all(|(at, word)| at % 4 == 0 && at + 4 <= DISK.configuration.into() && *word != 0), "{configuration:?}");
    let mut queue = Queue::new(8).expect("a size");
    queue.set_desc_table_address(Some(BASE as u32), None);
    queue.set_avail_ring_address(Some(BASE as u32 + 0x1000), None);
    queue.set_used_ring_address(Some(BASE as u32 + 0x2000), None);
    queue.set_ready(true);
    let mut queues = [queue];
    front_end.start(&memory, front_end.features(), &queues).expect("a queue of a size that it may have");
    let progress = front_end.serve(&memory, &mut queues).expect("an empty queue");
    assert_eq!(progress.interrupt, 0, "no request was answered");
    // Drain the front end's messages, up to the end of a connection that it gave up.
    back_end.set_nonblocking(true).expect("a mode");
    let mut questions = vec![0; 1 << 16];
    while let Ok(count) = back_end.read(&mut questions) {
        if count == 0 {
            break;
        }
    }
    reach("started");
    reach(if front_end.stop().is_ok() { "stopped" } else { "not stopped" });
}

/// A reply to a request.
fn reply(request: u8, content: &[u8]) -> Vec<u8> {
    [&[request, REPLY, content.len() as u8], content].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let number = |request: u8, value: u64| reply(request, &value.to_le_bytes());
    // VERSION_1, the protocol's features, and indirect descriptors; acknowledgments and configuration space.
    let features = number(1, 1 << 32 | 1 << 30 | 1 << 28 | 1 << 9);
    let protocol = number(15, 1 << 3 | 1 << 9);
    let configuration = reply(24, &[&[0; 12][..], &vec![1; DISK.configuration as usize]].concat());
    let acknowledged = |requests: &[u8]| requests.iter().flat_map(|request| number(*request, 0)).collect::<Vec<_>>();
    let connected = [&features[..], &protocol, &acknowledged(&[16]), &configuration, &acknowledged(&[5])].concat();
    let unacknowledged = [&features[..], &number(15, 1 << 9), &configuration].concat();
    let started = acknowledged(&[2, 8, 9, 10, 13, 12, 18]);
    let lie = [&[24, REPLY, LIE][..], &u32::MAX.to_le_bytes()].concat();
    vec![
        features[..7].to_vec(),
        number(1, 0),
        [&features[..], &number(15, 0), &number(24, 1)].concat(),
        [&features[..], &protocol, &lie].concat(),
        [&connected[..], &started, &number(11, 0)].concat(),
        [&connected[..], &number(2, 1)].concat(),
        connected,
        [&unacknowledged[..], &number(11, 0)].concat(),
        unacknowledged,
    ]
}
