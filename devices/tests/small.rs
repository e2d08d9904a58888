//! Devices without content of their own, on Stile's model of the registers: random bytes, and a folder that can't be served.

#[expect(dead_code, reason = "other tests use the rest")]
mod machine;

use machine::{DATA, Machine, NEXT, RAM_SIZE, WRITABLE};
use stile_devices::{Entropy, FailedFolder};
use stile_virtio::client;
use vm_memory::{Bytes, GuestAddress};

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
