//! The command's directory for temporary files: removed when the command ends, also by a signal; after SIGKILL, by the next command.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::{cleanup, exit, out};

/// Prefix of the directories' names.
const PREFIX: &str = "stile-run-";

/// The directory. Locked for the lifetime of its command, to distinguish it from leftovers.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes the directory in `temp`, and removes directories of killed commands.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new(temp: &Path) -> Result<Self> {
        if !temp.is_dir() {
            return Err(exit::usage(format!("there is no directory {}: unset TMPDIR, or create that directory", temp.display())));
        }
        sweep(temp);
        loop {
            let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(temp);
            let path = made.with_context(|| format!("making a directory for temporary files in {}", temp.display()))?.keep();
            let lock = File::open(&path).and_then(|dir| flock(&dir, FlockOperation::LockShared).map_err(io::Error::from).map(|()| dir));
            // Another command may have swept it before it was locked.
            if let Ok(lock) = lock
                && is_at(&lock, &path)
            {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It fails if a signal was faster.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether an open directory is the one at `path`.
fn is_at(dir: &File, path: &Path) -> bool {
    match (dir.metadata(), fs::metadata(path)) {
        (Ok(dir), Ok(there)) => (dir.dev(), dir.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Removes directories not locked by any command. Those of other users can't be removed.
fn sweep(temp: &Path) {
    for left in fs::read_dir(temp).into_iter().flatten().flatten() {
        if !left.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let path = left.path();
        // Opening a FIFO or a link of another user must neither wait nor lead elsewhere.
        let Ok(dir) = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        else {
            continue;
        };
        let dir = File::from(dir);
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&dir, &path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Ends the command, and removes its temporary files, at a signal during the lifetime of this value.
#[derive(Debug)]
pub struct EndBySignal {
    signals: Handle,
    watcher: Option<JoinHandle<()>>,
}

impl EndBySignal {
    /// Watches signals from here on.
    ///
    /// # Errors
    /// Signals can't be caught.
    pub fn watch(scratch: &Scratch) -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
        let (handle, path) = (signals.handle(), scratch.path().to_owned());
        let watcher = thread::spawn(move || {
            if let Some(signal) = next(&mut signals) {
                let _last = cleanup::run();
                let _ = fs::remove_dir_all(&path);
                let status = if signal == SIGINT { exit::LEFT } else { exit::TERMINATED };
                out::note("stile: ended by a signal");
                #[expect(clippy::disallowed_methods, reason = "other threads can't be interrupted; emulators end with their parent")]
                std::process::exit(status.into());
            }
        });
        Ok(Self { signals: handle, watcher: Some(watcher) })
    }
}

impl Drop for EndBySignal {
    /// Returns only if no signal is pending: later signals are for the next watcher.
    fn drop(&mut self) {
        self.signals.close();
        if let Some(watcher) = self.watcher.take() {
            // It does not panic.
            let _ = watcher.join();
        }
    }
}

/// Waits for a signal, or until the signals are closed; then returns a signal received before that, if any.
fn next(signals: &mut Signals) -> Option<i32> {
    if let Some(signal) = signals.forever().next() {
        return Some(signal);
    }
    signals.pending().next()
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGUSR1;

    use super::*;

    #[test]
    fn a_signal_is_not_lost_when_its_watcher_closes() {
        let mut signals = Signals::new([SIGUSR1]).unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        signals.handle().close();
        assert_eq!(next(&mut signals), Some(SIGUSR1));
        assert_eq!(next(&mut signals), None);
    }

    #[test]
    fn only_leftover_directories_are_swept() {
        let temp = tempfile::tempdir().unwrap();
        let left = temp.path().join(format!("{PREFIX}left"));
        let other = temp.path().join("other");
        for dir in [&left, &other] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("image"), "x").unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, temp.path().join(format!("{PREFIX}fifo")), Mode::RUSR).unwrap();
        let first = Scratch::new(temp.path()).unwrap();
        assert!(!left.exists() && other.exists());
        fs::write(first.path().join("image"), "x").unwrap();
        let second = Scratch::new(temp.path()).unwrap();
        assert!(first.path().join("image").exists() && second.path().exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }
}
