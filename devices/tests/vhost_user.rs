//! A disk whose requests `qemu-storage-daemon` carries out, on Stile's model of the registers.

#[expect(dead_code, reason = "other tests use the rest")]
mod machine;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use machine::{DATA, Machine, NEXT, RAM, RAM_SIZE, WRITABLE, available};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use stile_devices::{DISK, VhostUser, confined};
use stile_virtio::client;
use tempfile::TempDir;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

const HEADER: u64 = RAM + 0x4000;
const STATUS: u64 = RAM + 0x5000;
const SECTORS: u32 = 2048;
const BLOCK: u32 = 2;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;

/// A client with a disk, and the process that serves it.
struct WithDisk {
    machine: Machine<VhostUser<1>>,
    window: File,
    back_end: Child,
    folder: TempDir,
}

/// Starts a back end, and connects to it.
fn start(folder: &Path, memory: &GuestMemoryMmap, window: &File) -> (Child, VhostUser<1>) {
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    fcntl_setfd(&listener, FdFlags::empty()).expect("the socket is inherited");
    let socket = UnixStream::connect(&path).expect("a connection");
    std::fs::remove_file(path).expect("the socket's name");
    let [program, arguments @ ..] = &confined::disk(&folder.join("a,b"), false, listener.as_raw_fd())[..] else { panic!("a command") };
    let back_end = Command::new(program).args(arguments).stdin(Stdio::null()).spawn().expect("a back end");
    (back_end, VhostUser::new(socket, DISK, memory, window).expect("a connected back end"))
}

impl WithDisk {
    /// `None` if this machine has no QEMU.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let image = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(folder.path().join("a,b")).arg("1M").status();
        let is_there = |program| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
        if !image.is_ok_and(|status| status.success()) || !is_there("qemu-storage-daemon") {
            eprintln!("skipped, as there is no qemu-storage-daemon");
            return None;
        }
        let window = File::from(memfd_create("window", MemfdFlags::CLOEXEC).expect("a file"));
        window.set_len(RAM_SIZE as u64).expect("a size");
        let offset = FileOffset::new(window.try_clone().expect("a file"), 0);
        let memory = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(RAM), RAM_SIZE, Some(offset))]).expect("memory");
        let (back_end, backend) = start(folder.path(), &memory, &window);
        let machine = Machine::with_memory(BLOCK, memory, backend, 0);
        Some(Self { machine, window, back_end, folder })
    }

    fn offer(&mut self, kind: u32, sector: u64, length: u32) {
        let machine = &mut self.machine;
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        machine.memory.write_slice(&header, GuestAddress(HEADER)).expect("a header");
        machine.memory.write_obj(0xFFu8, GuestAddress(STATUS)).expect("a status");
        let to_device = if kind == WRITE { 0 } else { WRITABLE };
        // A request without data has no descriptor for them.
        machine.describe(0, 0, (HEADER, 16), NEXT, if length == 0 { 2 } else { 1 });
        machine.describe(0, 1, (DATA, length), to_device | NEXT, 2);
        machine.describe(0, 2, (STATUS, 1), WRITABLE, 0);
        machine.offer(0, 0);
        machine.kick(0);
    }

    /// Waits for the back end. Returns whether it is there.
    fn wait(&mut self) -> bool {
        let sources = self.machine.server.sources();
        let mut files: Vec<_> = sources.iter().flatten().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(Duration::from_secs(60)).expect("a time");
        assert_ne!(poll(&mut files, Some(&timeout)), Ok(0), "the back end does nothing");
        let is_gone = files.iter().any(|file| file.revents().intersects(PollFlags::ERR | PollFlags::HUP));
        self.machine.server.attend_backend();
        !is_gone
    }

    /// Waits for the answer to the last request: its status, and the length in the used ring.
    fn answer(&mut self) -> (u8, u32) {
        while self.machine.used(0) != self.machine.offered[0] {
            assert!(self.wait(), "the back end ended");
        }
        (self.machine.bytes(STATUS, 1)[0], self.machine.written(0))
    }

    fn request(&mut self, kind: u32, sector: u64, length: u32) -> (u8, u32) {
        self.offer(kind, sector, length);
        self.answer()
    }

    /// Ends the back end, and has another one take over, with another front end.
    fn restart(&mut self) {
        self.restart_as(|front_end| front_end);
    }

    fn restart_as(&mut self, change: impl FnOnce(VhostUser<1>) -> VhostUser<1>) {
        self.back_end.kill().expect("the back end is killed");
        self.back_end.wait().expect("the back end has ended");
        let (back_end, backend) = start(self.folder.path(), &self.machine.memory, &self.window);
        self.back_end = back_end;
        self.machine.replace_server(change(backend));
    }

    fn fill(&self, byte: u8, length: usize) {
        self.machine.memory.write_slice(&vec![byte; length], GuestAddress(DATA)).expect("data");
    }
}

impl Drop for WithDisk {
    fn drop(&mut self) {
        let _ = self.back_end.kill();
        let _ = self.back_end.wait();
    }
}

#[test]
fn data_is_written_and_read() {
    let Some(mut client) = WithDisk::new() else { return };
    assert_eq!(client.machine.load(client::CONFIG), SECTORS);
    client.fill(7, 4096);
    assert_eq!(client.request(WRITE, 3, 4096), (0, 1));
    assert_eq!(client.request(FLUSH, 0, 0), (0, 1));
    client.fill(0, 4096);
    assert_eq!(client.request(READ, 3, 4096), (0, 4097));
    assert_eq!(client.machine.bytes(DATA, 4096), [7; 4096]);
    assert_eq!(client.request(READ, u64::from(SECTORS), 512).0, 1, "an I/O error");
    client.machine.reset();
    assert!(client.machine.transport().is_quiet());
    client.machine.start_driver();
    assert_eq!(client.request(READ, 4, 512), (0, 513));
    assert_eq!(client.machine.bytes(DATA, 512), [7; 512]);
}

#[test]
fn a_reset_waits_for_requests_under_way() {
    let Some(mut client) = WithDisk::new() else { return };
    client.fill(9, 65536);
    client.offer(WRITE, 0, 65536);
    client.machine.reset();
    assert!(client.machine.transport().is_quiet());
    client.machine.start_driver();
    assert_eq!(client.request(READ, 127, 512), (0, 513));
    assert_eq!(client.machine.bytes(DATA, 512), [9; 512], "the back end had the request");
}

/// All that was answered is on the disk, and all else is repeated.
#[test]
fn nothing_is_lost_when_the_back_end_dies() {
    let Some(mut client) = WithDisk::new() else { return };
    for round in 1..20u8 {
        client.fill(round, 65536);
        client.offer(WRITE, u64::from(round) * 64, 65536);
        if round % 2 == 0 {
            client.answer();
        } else {
            std::thread::sleep(Duration::from_micros(u64::from(round) * 100));
        }
        client.restart();
        assert_eq!(client.answer().0, 0);
        client.fill(0, 65536);
        assert_eq!(client.request(READ, u64::from(round) * 64, 65536).0, 0);
        // The next piece begins in the middle of this one.
        assert_eq!(client.machine.bytes(DATA, 65536), vec![round; 65536]);
    }
}

#[test]
fn the_end_of_the_back_end_is_noticed() {
    let Some(mut client) = WithDisk::new() else { return };
    client.back_end.kill().expect("the back end is killed");
    assert!(!client.wait());
    client.machine.reset();
    assert!(!client.machine.transport().is_quiet(), "the process's end acknowledges the reset");
}

/// A back end that hangs is given up at the limit; one that answers, or has no requests, is not.
#[test]
fn a_back_end_that_answers_nothing_is_given_up() {
    const LIMIT: Duration = Duration::from_millis(100);
    let Some(mut client) = WithDisk::new() else { return };
    client.restart_as(|front_end| front_end.with_limit(Duration::from_secs(1000)));
    client.fill(7, 512);
    assert_eq!(client.request(WRITE, 0, 512).0, 0);
    assert_eq!(client.machine.server.patience(), None, "it has no requests");
    client.restart_as(|front_end| front_end.with_limit(LIMIT));
    assert_eq!(client.machine.server.patience(), None);
    kill_process(Pid::from_child(&client.back_end), Signal::STOP).expect("the back end is stopped");
    client.offer(READ, 0, 512);
    assert!(client.machine.server.patience().is_some_and(|patience| patience <= LIMIT));
    std::thread::sleep(LIMIT);
    assert_eq!(client.machine.server.patience(), Some(Duration::ZERO));
    client.machine.server.attend_backend();
    assert!(!client.wait(), "the connection has ended");
    client.restart();
    assert_eq!(client.answer(), (0, 513), "the next one has the request");
    assert_eq!(client.machine.bytes(DATA, 512), [7; 512]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// With any content of the queue, the next driver has a disk, perhaps of another back end.
    #[test]
    fn hostile_queues_end_in_nothing_worse(
        heads in prop::collection::vec(0..9u16, 8),
        descriptors in prop::collection::vec((0..RAM_SIZE as u64 + 0x100, 0..0x2_0000u32, 0..8u16, 0..9u16), 8),
        index in 0..10u16,
    ) {
        let Some(mut client) = WithDisk::new() else { return Ok(()) };
        for (number, (address, length, flags, next)) in (0..).zip(descriptors) {
            client.machine.describe(0, number, (RAM + address, length), flags, next);
        }
        for (number, head) in (0..).zip(heads) {
            client.machine.memory.write_obj(head, GuestAddress(available(0) + 4 + 2 * number)).unwrap();
        }
        client.machine.memory.write_obj(index, GuestAddress(available(0) + 2)).unwrap();
        client.machine.kick(0);
        client.machine.reset();
        if !client.machine.transport().is_quiet() {
            client.restart();
            client.machine.reset();
        }
        client.machine.start_driver();
        client.fill(1, 512);
        prop_assert_eq!(client.request(WRITE, 0, 512).0, 0);
        client.fill(0, 512);
        prop_assert_eq!(client.request(READ, 0, 512), (0, 513));
        prop_assert_eq!(client.machine.bytes(DATA, 512), vec![1; 512]);
    }
}
