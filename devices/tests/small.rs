//! Devices without content of their own, on Stile's model of the registers: random bytes, a console's output, and a folder that can't be served.

mod machine;

use machine::{DATA, Machine, NEXT, RAM, RAM_SIZE, WRITABLE, available};
use proptest::prelude::*;
use stile_devices::{Entropy, FailedFolder, LOG_LIMIT, Log};
use stile_virtio::client;
use vm_memory::{Bytes, GuestAddress};

const CONSOLE: u32 = 3;
const RNG: u32 = 4;
const FS: u32 = 26;

#[test]
fn buffers_are_filled_with_random_bytes() {
    let mut client = Machine::new(RNG, Entropy::open().expect("random bytes"), 0);
    let mut seen = Vec::new();
    for (length, filled) in [(64, 64), (64, 64), (4096, 256), (0, 0)] {
        client.memory.write_slice(&[0; 4096], GuestAddress(DATA)).unwrap();
        client.describe(0, 0, (DATA, length), WRITABLE, 0);
        client.offer(0, 0);
        client.kick(0);
        assert_eq!((client.used(0), client.written(0)), (client.offered[0], filled));
        seen.push(client.bytes(DATA, 64));
        assert!(client.bytes(DATA + u64::from(filled), 64).iter().all(|byte| *byte == 0), "not more than the used ring says");
    }
    assert!(seen[0] != seen[1] && seen[0].iter().any(|byte| *byte != 0));
}

#[test]
fn a_hostile_client_of_random_bytes_gets_no_more() {
    let mut client = Machine::new(RNG, Entropy::open().expect("random bytes"), 0);
    // A buffer for reading, one outside of RAM, and a loop, which is a buffer of the client's.
    for (address, flags, filled) in [(DATA, 0, 0), (DATA + RAM_SIZE as u64, WRITABLE, 0), (DATA, WRITABLE | NEXT, 256)] {
        client.describe(0, 0, (address, 64), flags, 0);
        client.offer(0, 0);
        client.kick(0);
        assert_eq!(client.written(0), filled, "{address:#x} {flags}");
        client.reset();
        client.start_driver();
    }
}

#[test]
fn requests_to_a_failed_folder_fail() {
    let mut client = Machine::new(FS, FailedFolder { tag: "src".into() }, 0);
    assert_eq!(client.load(client::CONFIG), u32::from_le_bytes(*b"src\0"));
    assert_eq!(client.load(client::CONFIG + 36), 1, "request queues");
    let header: Vec<u8> = [40u32, 26].iter().flat_map(|word| word.to_le_bytes()).chain(7u64.to_le_bytes()).chain([0; 24]).collect();
    for queue in [0, 1] {
        client.memory.write_slice(&header, GuestAddress(DATA)).unwrap();
        client.describe(queue, 0, (DATA, 40), NEXT, 1);
        client.describe(queue, 1, (DATA + 0x100, 80), WRITABLE, 0);
        client.offer(queue, 0);
        client.kick(queue);
        let answer: Vec<u8> = [16u32.to_le_bytes(), (-5i32).to_le_bytes()].concat().into_iter().chain(7u64.to_le_bytes()).collect();
        assert_eq!((client.written(queue), client.bytes(DATA + 0x100, 16)), (16, answer));
    }
    // FUSE_FORGET expects no answer.
    client.describe(0, 0, (DATA, 40), 0, 0);
    client.offer(0, 0);
    client.kick(0);
    assert_eq!((client.used(0), client.written(0)), (2, 0));
}

#[test]
fn output_of_a_console_goes_to_its_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log");
    let content = || std::fs::read_to_string(&path).expect("the file");
    std::fs::write(&path, "before\n").expect("a file");
    let mut client = Machine::new(CONSOLE, Log::open(&path).expect("the file"), 0);
    let line: String = (0..2000).map(|number| format!("{number} ")).collect();
    client.memory.write_slice(line.as_bytes(), GuestAddress(DATA)).unwrap();
    client.describe(1, 0, (DATA, 5), NEXT, 1);
    client.describe(1, 1, (DATA + 5, line.len() as u32 - 5), 0, 0);
    client.offer(1, 0);
    // Buffers for input stay where they are.
    client.describe(0, 0, (DATA, 64), WRITABLE, 0);
    client.offer(0, 0);
    (0..2).for_each(|queue| client.kick(queue));
    assert_eq!((client.used(0), client.used(1), client.written(1)), (0, 1, 0));
    assert_eq!(content(), format!("before\n{line}"));
    // A file that is full begins anew, and so does that of the next process.
    std::fs::OpenOptions::new().append(true).open(&path).and_then(|file| file.set_len(LOG_LIMIT - 1)).expect("a large file");
    client.replace_server(Log::open(&path).expect("the file"));
    client.describe(1, 0, (DATA, 5), 0, 0);
    client.offer(1, 0);
    client.kick(1);
    assert_eq!(content(), line[..5]);
    // Output of a console that is given up is lost, and nobody waits.
    client.replace_server(Log::lost());
    client.offer(1, 0);
    client.kick(1);
    assert_eq!((client.used(1), content()), (3, line[..5].to_owned()));
}

proptest! {
    /// A console's server returns for any content of its queues, writes nothing to the client's memory but the used rings, and works again.
    #[test]
    fn hostile_queues_of_a_console_end_in_nothing_worse(
        rings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0x40), 2),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, any::<u32>(), 0..8u16, 0..9u16), 16),
        indexes in prop::collection::vec(0..9u16, 2),
    ) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut client = Machine::new(CONSOLE, Log::open(file.path()).expect("the file"), 0);
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            client.describe(usize::from(number / 8), number % 8, (RAM + address, length >> (length % 32)), flags, next);
        }
        for (queue, (ring, index)) in rings.iter().zip(indexes).enumerate() {
            client.memory.write_slice(ring, GuestAddress(available(queue))).unwrap();
            client.memory.write_obj(index, GuestAddress(available(queue) + 2)).unwrap();
        }
        let before = client.bytes(DATA, RAM_SIZE - 0x1_0000);
        (0..2).for_each(|queue| client.kick(queue));
        prop_assert!(before == client.bytes(DATA, RAM_SIZE - 0x1_0000));
        prop_assert!(std::fs::metadata(file.path()).expect("the file").len() <= LOG_LIMIT);
        client.reset();
        client.start_driver();
        let size = std::fs::metadata(file.path()).expect("the file").len();
        client.describe(1, 0, (DATA, 5), 0, 0);
        client.offer(1, 0);
        client.kick(1);
        let grown = std::fs::metadata(file.path()).expect("the file").len();
        prop_assert!(grown == size + 5 || grown == 5);
    }
}
