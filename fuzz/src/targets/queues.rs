//! Queues and requests of a served device's client, as the device's process reads them.

use std::cell::Cell;
use std::io;
use std::ops::Range;

use stile_devices::{Backend, Balloon, Disk, Entropy, FailedFolder, Identity, Log, Network, Port, Registers, Vsock};
use stile_virtio::{EventPage, server};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// Any queues of any device.
pub const QUEUES: Target = Target {
    name: "served-queues",
    run: queues,
    seeds,
    mutations: 1000,
    marks: &[
        "disk",
        "network",
        "random bytes",
        "sockets",
        "console",
        "folder",
        "balloon",
        "given",
        "taken",
        "written",
        "senseless",
        "indirect",
    ],
};

/// The client's RAM.
const BASE: u64 = 0x4000_0000;
const SIZE: usize = 0x8000;
/// Each queue's descriptors; its rings, and their parts, follow.
const QUEUE: u64 = 0x400;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
const DESCRIPTORS: u16 = 8;
/// Buffers, and their content.
const DATA: u64 = 0x2000;

/// VIRTIO_BALLOON_F_MUST_TELL_HOST: without it, a balloon has no driver.
const MUST_TELL_HOST: u64 = 1;

/// Flags of a descriptor: a buffer that the device writes; a table of descriptors.
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Rounds in which a process is done: each uses a buffer at least.
const ROUNDS: usize = 4 * 8;

/// A switch on which nobody is, but from which that many frames come.
struct Wire(usize);

impl Port for Wire {
    fn send(&mut self, frame: &[u8]) {
        assert!(frame.len() >= 26, "a frame without addresses");
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.0 = self.0.checked_sub(1)?;
        buffer[..100].fill(7);
        Some(100)
    }

    fn accept_partial_checksums(&mut self, _accepted: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Stile's side of a balloon's registers. Refuses the pages whose number modulo 8 is a bit that is set in `answers`.
struct Stile {
    answers: u8,
    last: Cell<u32>,
    events: EventPage,
}

impl Registers for Stile {
    fn read(&self, offset: u64) -> u32 {
        assert!(matches!(offset, server::BALLOON_ANSWER | server::BALLOON_BLOCKS), "{offset:#x} is read");
        let is_refused = self.answers >> (self.last.get() & 7) & 1 != 0;
        if offset == server::BALLOON_ANSWER && is_refused { server::REFUSED } else { server::DONE }
    }

    fn write(&self, offset: u64, value: u32) {
        match offset {
            server::BALLOON_BEGIN => {}
            server::BALLOON_GIVE => reach("given"),
            server::BALLOON_TAKE => reach("taken"),
            _ => panic!("{offset:#x} is written"),
        }
        self.last.set(value);
    }

    fn events(&self) -> &EventPage {
        &self.events
    }
}

fn queues(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let file = || tempfile::NamedTempFile::new().expect("a file");
    let kind = input.byte();
    match kind % 6 {
        _ if kind >= 0xfc => {
            reach("balloon");
            let stile = Stile { answers: input.byte(), last: Cell::new(0), events: EventPage::new() };
            serve_features(Balloon::new(stile, 1 << 20), MUST_TELL_HOST, &mut input);
        }
        0 => {
            reach("disk");
            let file = file();
            file.as_file().set_len(0x4000).expect("a disk");
            serve(Disk::open(file.path(), input.bit()).expect("a disk"), &mut input);
        }
        1 => {
            reach("network");
            serve(Network::new(Wire(3), Identity { mac: [2, 0, 0, 0, 0, 1], ip: Some([10, 0, 2, 15].into()) }), &mut input);
        }
        2 => {
            reach("random bytes");
            serve(Entropy::open().expect("random bytes"), &mut input);
        }
        3 => {
            reach("sockets");
            serve(Vsock::new(3, Vec::new()).expect("sockets"), &mut input);
        }
        4 => {
            reach("console");
            serve(Log::open(file().path()).expect("a file"), &mut input);
        }
        _ => {
            reach("folder");
            serve(FailedFolder { tag: "src".to_owned() }, &mut input);
        }
    }
}

/// Serves queues of a driver that accepts no feature.
fn serve<B: Backend>(backend: B, input: &mut Input<'_>) {
    serve_features(backend, 0, input);
}

/// Serves queues with any content: the process returns, and writes nothing but used rings and buffers that the client made writable.
fn serve_features<B: Backend>(mut backend: B, features: u64, input: &mut Input<'_>) {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), SIZE)]).expect("memory");
    let mut writable: Vec<Range<u64>> = Vec::new();
    let mut is_indirect = false;
    let mut queues = Vec::new();
    for number in 0..B::QUEUE_SIZES.len() as u64 {
        let start = BASE + QUEUE * number;
        for index in 0..u64::from(DESCRIPTORS) {
            let address =
                if input.byte().is_multiple_of(8) { input.value() } else { BASE + DATA + u64::from(input.half()) % (SIZE as u64 - DATA) };
            let length = u32::from(input.half()) & 0x1fff;
            let flags = match input.byte() {
                0xf0.. => INDIRECT,
                flags => u16::from(flags) & 3,
            };
            let next = u16::from(input.byte()) % (DESCRIPTORS + 1);
            let bytes = [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
            memory.write_slice(&bytes, GuestAddress(start + 16 * index)).expect("a descriptor");
            // Parts in front of the buffers would change the queues.
            let is_near = (BASE..BASE + DATA).contains(&address);
            if is_near {
                memory.write_slice(&[0; 16], GuestAddress(start + 16 * index)).expect("a descriptor");
            } else if flags & WRITE != 0 {
                writable.push(address..address.saturating_add(length.into()));
            }
            is_indirect |= flags & INDIRECT != 0;
        }
        let ring = [input.below(9) as u16; 1].into_iter().chain((0..DESCRIPTORS).map(|_| input.below(9) as u16));
        let ring: Vec<u8> = [0, 0].into_iter().chain(ring.flat_map(u16::to_le_bytes)).collect();
        memory.write_slice(&ring, GuestAddress(start + AVAILABLE)).expect("a ring");
        writable.push(start + USED..start + QUEUE);
        let mut queue = Queue::new(DESCRIPTORS).expect("a size");
        queue.set_desc_table_address(Some(start as u32), None);
        queue.set_avail_ring_address(Some((start + AVAILABLE) as u32), None);
        queue.set_used_ring_address(Some((start + USED) as u32), None);
        queue.set_event_idx(input.bit());
        queue.set_ready(true);
        queues.push(queue);
    }
    let content = input.rest();
    memory.write_slice(&content[..content.len().min(SIZE - DATA as usize)], GuestAddress(BASE + DATA)).expect("buffers");
    let all = || {
        let mut bytes = vec![0; SIZE];
        memory.read_slice(&mut bytes, GuestAddress(BASE)).expect("RAM");
        bytes
    };
    let before = all();
    backend.start(&memory, features, &queues).expect("queues that have no content yet");
    let mut rounds = 0;
    loop {
        rounds += 1;
        assert!(rounds <= ROUNDS, "a process that does not end");
        match backend.serve(&memory, &mut queues) {
            Ok(progress) if progress.more => {}
            Ok(_) => break,
            Err(_) => {
                reach("senseless");
                break;
            }
        }
    }
    if is_indirect {
        reach("indirect");
        // A buffer of the client's may change the table, and so the buffers.
        return;
    }
    for (at, (old, new)) in (BASE..).zip(before.into_iter().zip(all())) {
        if old != new {
            reach("written");
            assert!(writable.iter().any(|range| range.contains(&at)), "{at:#x} was not writable");
        }
    }
}

/// Bytes of a client that offers `chain`, of parts with a place among the buffers, a length and whether it is writable, in queue `wanted` of
/// `count`.
fn client(device: &[u8], (wanted, count): (usize, usize), chain: &[(u16, u16, bool)], content: &[u8]) -> Vec<u8> {
    let mut bytes = device.to_vec();
    for queue in 0..count {
        let parts = if queue == wanted { chain } else { &[] };
        for index in 0..usize::from(DESCRIPTORS) {
            let (at, length, is_writable) = parts.get(index).copied().unwrap_or_default();
            let flags = u8::from(index + 1 < parts.len()) | u8::from(is_writable) << 1;
            bytes.push(1);
            bytes.extend([at.to_le_bytes(), length.to_le_bytes()].concat());
            bytes.extend([flags, index as u8 + 1]);
        }
        bytes.push(u8::from(!parts.is_empty()));
        bytes.extend([0; DESCRIPTORS as usize + 1]);
    }
    [&bytes[..], content].concat()
}

/// Bytes of a descriptor in the input: a choice, place, length, flags and the next one's number.
const FLAGS: usize = 5;

fn seeds() -> Vec<Vec<u8>> {
    let request = [1u32, 0, 0, 0].map(u32::to_le_bytes).concat();
    let read = [&[0][..], &request[4..]].concat();
    let disk = [(0, 16, false), (0x100, 512, true), (0x400, 1, true)];
    let frame = [&[0; 12][..], &[2; 6], &[2, 0, 0, 0, 0, 1], &[8, 6], &[0; 46]].concat();
    let socket = [&3u64.to_le_bytes()[..], &4u64.to_le_bytes(), &[1, 0, 0, 0, 2, 0, 0, 0], &[0, 0, 0, 0, 1, 0, 1, 0], &[0; 12]].concat();
    let mut sockets = client(&[3], (1, 3), &[(0, 44, false)], &socket);
    // A buffer for the refusal, in the first queue: the place of its first descriptor, and the ring's index.
    sockets[1..8].copy_from_slice(&[1, 0, 1, 100, 0, 2, 0]);
    sockets[1 + 7 * usize::from(DESCRIPTORS)] = 1;
    let mut senseless = client(&[2], (0, 1), &[(0, 64, true)], &[]);
    // A descriptor that is none.
    senseless[2 + 7 * usize::from(DESCRIPTORS)] = 8;
    // A table of one buffer to fill.
    let table = [&(BASE + DATA + 0x100).to_le_bytes()[..], &64u32.to_le_bytes(), &WRITE.to_le_bytes(), &[0; 2]].concat();
    let mut indirect = client(&[2], (0, 1), &[(0, 16, false)], &table);
    indirect[1 + FLAGS] = 0xf0;
    vec![
        client(&[0, 0], (0, 1), &disk, &read),
        client(&[0, 0], (0, 1), &disk[..2], &request),
        client(&[1], (1, 2), &[(0, 72, false)], &frame),
        client(&[1], (0, 2), &[(0, 200, true)], &[]),
        client(&[2], (0, 1), &[(0, 64, true)], &[]),
        senseless,
        sockets,
        client(&[4], (1, 2), &[(0, 64, false)], b"hello"),
        indirect,
        client(&[0xff, 2], (0, 2), &[(0, 16, false), (0x10, 4, false)], &[0, 0, 4, 0, 1, 0, 4, 0, 0xff, 0xff, 0xff, 0xff]),
        client(&[0xff, 0], (1, 2), &[(0, 8, false)], &[0, 0, 4, 0, 1, 0, 4, 0]),
        client(&[5], (1, 2), &[(0, 40, false), (0x100, 16, true)], &[]),
    ]
}
