//! The sandbox of a device's process: a disk is served in it, and nothing else can be done. Each test is a process of its own, because a
//! sandbox has no way out.

#[expect(dead_code, reason = "other tests use the rest")]
mod machine;

use std::fs::{self, File};
use std::io;
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
const WRITE: u32 = 1;

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

fn enter() {
    sandbox::limit_memory().expect("a limit");
    sandbox::drop_privileges(sandbox::user(0)).expect("fewer rights");
    sandbox::filter_system_calls(&[]).expect("a filter");
}

#[test]
fn a_disk_is_served() {
    let status = inside("a_disk_is_served", || {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * SECTOR).expect("a size");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let disk = Disk::open(path.as_ref(), false).expect("a disk");
        enter();
        let mut machine = Machine::new(BLOCK, disk, 0);
        let (header, status) = (RAM + 0x4000, RAM + 0x5000);
        for (kind, flags) in [(WRITE, 0), (0, WRITABLE), (4, WRITABLE)] {
            let request = [&u32::to_le_bytes(kind)[..], &[0; 4], &u64::to_le_bytes(3)].concat();
            machine.memory.write_slice(&request, GuestAddress(header)).expect("a header");
            machine.describe(0, 0, (header, 16), NEXT, 1);
            machine.describe(0, 1, (DATA, 512), flags | NEXT, 2);
            machine.describe(0, 2, (status, 1), WRITABLE, 0);
            machine.offer(0, 0);
            machine.kick(0);
            if machine.bytes(status, 1)[0] != 0 {
                return false;
            }
        }
        println!("served");
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
