//! Clean-ups for a command that a signal ends: destructors do not run then.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// All clean-ups that are due.
static DUE: Mutex<Due> = Mutex::new(Due { next: 0, cleanups: BTreeMap::new() });

#[derive(Debug)]
struct Due {
    next: u64,
    cleanups: BTreeMap<u64, Cleanup>,
}

#[derive(Debug)]
enum Cleanup {
    Remove(PathBuf),
    Restore(fn()),
    /// A process, which may have ended and been waited for.
    End(OwnedFd),
}

/// A clean-up. Not due any more when this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        due().cleanups.remove(&self.0);
    }
}

fn due() -> MutexGuard<'static, Due> {
    DUE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Due {
    fn add(&mut self, cleanup: Cleanup) -> Entry {
        self.next += 1;
        self.cleanups.insert(self.next, cleanup);
        Entry(self.next)
    }
}

/// Makes a temporary file or directory, which a signal removes.
///
/// # Errors
/// It can't be made.
pub fn removing<T: AsRef<Path>, E>(make: impl FnOnce() -> Result<T, E>) -> Result<(T, Entry), E> {
    // No signal's watcher gets in between.
    let mut due = due();
    let made = make()?;
    let entry = due.add(Cleanup::Remove(made.as_ref().to_owned()));
    Ok((made, entry))
}

/// Sets the terminal up, which a signal restores.
///
/// # Errors
/// The terminal refuses.
pub fn restoring<T, E>(restore: fn(), set_up: impl FnOnce() -> Result<T, E>) -> Result<(T, Entry), E> {
    let mut due = due();
    let made = set_up()?;
    Ok((made, due.add(Cleanup::Restore(restore))))
}

/// Starts a process, which a signal ends by SIGTERM. On kernels without process descriptors (Linux before 5.3) it goes on.
///
/// # Errors
/// It can't be started.
pub fn ending<E>(start: impl FnOnce() -> Result<Child, E>) -> Result<(Child, Option<Entry>), E> {
    let mut due = due();
    let child = start()?;
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok((child, process.map(|process| due.add(Cleanup::End(process)))))
}

/// Cleans up. The process must end while the result lives: others that would add or remove a clean-up wait.
pub fn run() -> impl Sized {
    let due = due();
    for cleanup in due.cleanups.values() {
        match cleanup {
            // It fails if the command was faster.
            Cleanup::Remove(path) => drop(fs::remove_file(path).or_else(|_| fs::remove_dir_all(path))),
            Cleanup::Restore(restore) => restore(),
            // It fails if the process has ended.
            Cleanup::End(process) => _ = pidfd_send_signal(process, Signal::TERM),
        }
    }
    due
}
