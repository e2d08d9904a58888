//! The sandbox of a device's process: a disk is served in it, and nothing else can be done. Each test is a process of its own, because a
//! sandbox has no way out.

#[expect(dead_code, reason = "other tests use the rest")]
mod machine;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;

use machine::{DATA, Machine, NEXT, RAM, WRITABLE};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Signal, geteuid};
use stile_devices::{Backend, Disk, Progress, SECTOR, sandbox};
use virtio_queue::{Error, Queue};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Names a test in the process that executes it.
const INSIDE: &str = "STILE_SANDBOX_TEST";

const BLOCK: u32 = 2;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH_ALL: u32 = 4;

/// Executes `test` in a process, and returns its status; `None` for users who can't have a sandbox. `name` is the calling test's.
fn inside(name: &str, test: impl FnOnce() -> bool) -> Option<ExitStatus> {
    if std::env::var(INSIDE).as_deref() == Ok(name) {
        let status = if test() { 0 } else { 1 };
        #[expect(clippy::disallowed_methods, reason = "the test's harness takes more system calls than a sandbox has")]
        std::process::exit(status);
    }
    if !geteuid().is_root() {
        eprintln!("{name}: skipped, as this user is not root");
        return None;
    }
    let program = std::env::current_exe().expect("this program");
    Some(
        Command::new(program)
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, name)
            .env("RUST_BACKTRACE", "0")
            .status()
            .expect("a process"),
    )
}

/// A back end that allocates without end.
#[derive(Default)]
struct Endless(Vec<Vec<u8>>);

impl Backend for Endless {
    const QUEUE_SIZES: &'static [u16] = &[8];

    fn features(&self) -> u64 {
        0
    }

    fn configuration(&self) -> Vec<(u64, u32)> {
        Vec::new()
    }

    fn start(&mut self, _: &GuestMemoryMmap, _: u64, _: &[Queue]) -> Result<(), Error> {
        Ok(())
    }

    fn serve(&mut self, _: &GuestMemoryMmap, _: &mut [Queue]) -> Result<Progress, Error> {
        // Enough, if there is no limit.
        while self.0.len() < 256 {
            self.0.push(vec![1; 1 << 20]);
        }
        Ok(Progress::default())
    }
}

/// VIRTIO_BLK_F_FLUSH.
const FLUSH: u32 = 1 << 9;

/// Enters the sandbox of a disk.
fn enter() {
    sandbox::limit_memory().expect("a limit");
    sandbox::drop_privileges(sandbox::user(0)).expect("fewer rights");
    sandbox::filter_system_calls(Disk::SYSTEM_CALLS).expect("a filter");
}

/// Number of a file's pages in the kernel's cache that its device does not have, or 0 if the kernel does not tell (cachestat, Linux 6.5).
fn unwritten(file: &File) -> u64 {
    const CACHESTAT: libc::c_long = 451;
    let (range, mut counts) = ([0u64, 0], [0u64; 5]);
    // SAFETY: the kernel reads two numbers of 64 bits and writes five.
    let status = unsafe { libc::syscall(CACHESTAT, std::os::fd::AsRawFd::as_raw_fd(file), range.as_ptr(), counts.as_mut_ptr(), 0) };
    let [_, dirty, writeback, ..] = counts;
    if status == 0 { dirty + writeback } else { 0 }
}

#[test]
fn an_answered_write_is_not_in_memory_alone() {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.set_len(64 * SECTOR).expect("a size");
    let disk = Disk::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)).as_ref(), false).expect("a disk");
    let mut machine = Machine::new(BLOCK, disk, FLUSH);
    assert!(request(&mut machine, &[(WRITE, 0)]));
    assert_eq!(unwritten(&file), 0);
}

#[test]
fn a_disk_is_served() {
    serve_in_sandbox("a_disk_is_served", 0);
}

#[test]
fn a_disk_whose_driver_flushes_is_served() {
    serve_in_sandbox("a_disk_whose_driver_flushes_is_served", FLUSH);
}

/// Sends requests of these kinds, and flags of their data, one after the other. Returns whether all were answered without an error.
fn request(machine: &mut Machine<Disk>, requests: &[(u32, u16)]) -> bool {
    let (header, status) = (RAM + 0x4000, RAM + 0x5000);
    requests.iter().all(|&(kind, flags)| {
        let request = [&u32::to_le_bytes(kind)[..], &[0; 4], &u64::to_le_bytes(3)].concat();
        machine.memory.write_slice(&request, GuestAddress(header)).expect("a header");
        machine.describe(0, 0, (header, 16), NEXT, 1);
        machine.describe(0, 1, (DATA, 512), flags | NEXT, 2);
        machine.describe(0, 2, (status, 1), WRITABLE, 0);
        machine.offer(0, 0);
        machine.kick(0);
        machine.bytes(status, 1)[0] == 0
    })
}

/// Serves a disk in a sandbox to a driver with these features. `name` is the calling test's.
fn serve_in_sandbox(name: &str, features: u32) {
    let status = inside(name, || {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * SECTOR).expect("a size");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let disk = Disk::open(path.as_ref(), false).expect("a disk");
        enter();
        let mut machine = Machine::new(BLOCK, disk, features);
        if !request(&mut machine, &[(WRITE, 0), (READ, WRITABLE), (FLUSH_ALL, WRITABLE)]) {
            return false;
        }
        // Output is allowed.
        writeln!(io::stdout(), "served").expect("output");
        // More than what the allocator has at hand.
        drop(std::hint::black_box(vec![1u8; 8 << 20]));
        true
    });
    assert!(status.is_none_or(|status| status.success()), "{status:?}");
}

#[test]
fn memory_is_limited() {
    let status = inside("memory_is_limited", || {
        enter();
        let machine = Machine::new(BLOCK, Endless::default(), 0);
        !machine.server.backend().0.is_empty()
    });
    // As the allocator ends a process that gets no memory.
    let ends = |status: ExitStatus| status.signal() == Some(Signal::ABORT.as_raw());
    assert!(status.is_none_or(ends), "{status:?}");
}

#[test]
fn memory_beside_the_limit_is_refused() {
    let status = inside("memory_beside_the_limit_is_refused", || {
        enter();
        // SAFETY: without MAP_FIXED, the kernel chooses an address at which nothing else is.
        unsafe { mmap_anonymous(ptr::null_mut(), 1 << 20, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).is_ok() }
    });
    let ends = |status: ExitStatus| status.signal() == Some(Signal::SYS.as_raw());
    assert!(status.is_none_or(ends), "{status:?}");
}

#[test]
fn no_file_can_be_opened() {
    let status = inside("no_file_can_be_opened", || {
        enter();
        File::open("/etc/passwd").is_ok()
    });
    let ends = |status: ExitStatus| status.signal() == Some(Signal::SYS.as_raw());
    assert!(status.is_none_or(ends), "{status:?}");
}

#[test]
fn the_user_has_no_rights_and_no_files() {
    let status = inside("the_user_has_no_rights_and_no_files", || {
        sandbox::drop_privileges(sandbox::user(0)).expect("fewer rights");
        let refused = |result: io::Result<()>| result.is_err();
        let has_none = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.is_empty() && sets.permitted.is_empty());
        let files = fs::read_dir("/").map(Iterator::count);
        !geteuid().is_root() && has_none && matches!(files, Ok(0)) && refused(fs::write("/x", "")) && refused(fs::create_dir("/y"))
    });
    assert!(status.is_none_or(|status| status.success()), "{status:?}");
}
