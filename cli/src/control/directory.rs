//! The directory of control sockets: `$XDG_RUNTIME_DIR/stile`, or a directory of the user's under the temporary directory.
//!
//! The directory has mode 0700 and sockets mode 0600. A socket that refuses connections is stale: its machine ended without removing it.
//! Sockets are made and removed under a lock, so that a stale one is never confused with one that is about to listen.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tempfile::NamedTempFile;

use super::name;
use crate::config::similar;
use crate::exit;

const EXTENSION: &str = "sock";

/// Extension of detached machines' logs.
const LOG: &str = "log";

/// The lock file.
const LOCK: &str = ".lock";

/// Number of logs kept of detached machines that have ended.
const LOGS: usize = 16;

/// Maximum number of generated names.
const ATTEMPTS: u32 = 100;

/// The user's directory of control sockets.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

/// A machine's listening socket; the file is removed with it.
#[derive(Debug)]
pub struct Claim {
    /// The machine's name.
    pub name: String,
    /// The socket's file.
    pub path: PathBuf,
    /// The socket.
    pub listener: UnixListener,
    directory: Directory,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Without the lock, too: a socket that stays is recognised as stale.
        let _lock = self.directory.lock();
        let _ = fs::remove_file(&self.path);
    }
}

impl Directory {
    /// Opens the user's directory, and creates it if necessary.
    ///
    /// # Errors
    /// It can't be created, or other users have access to it.
    pub fn open() -> Result<Self> {
        let path = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
            Some(dir) if !Path::new(&dir).is_dir() => {
                let dir = Path::new(&dir).display();
                return Err(exit::usage(format!("there is no directory {dir}: unset XDG_RUNTIME_DIR, or create that directory")));
            }
            Some(dir) => PathBuf::from(dir).join("stile"),
            None => std::env::temp_dir().join(format!("stile-{}", rustix::process::geteuid().as_raw())),
        };
        Self::at(path)
    }

    /// Opens a directory of control sockets at a path.
    ///
    /// # Errors
    /// See [`Directory::open`].
    pub fn at(path: PathBuf) -> Result<Self> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error).with_context(|| format!("creating {}", path.display()))?,
            _ => {}
        }
        // A link could lead into another user's directory.
        let metadata = fs::symlink_metadata(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(metadata.is_dir(), "{} is not a directory", path.display());
        let private = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o077 == 0;
        ensure!(
            private,
            "{} must be owned by you, with mode 0700; it is owned by user {}, with mode {:04o}",
            path.display(),
            metadata.uid(),
            metadata.mode() & 0o7777
        );
        Ok(Self { path })
    }

    /// The path of a machine's socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{EXTENSION}"))
    }

    /// The path of the file that a detached machine's messages go to.
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{LOG}"))
    }

    /// Makes a file for the messages of a machine that is not there yet, to be moved to [`Directory::log`] once it is.
    ///
    /// # Errors
    /// It can't be made.
    pub fn new_log(&self, name: &str) -> Result<NamedTempFile> {
        // Only its owner may read it, as the module `tempfile` makes files.
        let made = tempfile::Builder::new().prefix(&format!(".{name}-")).suffix(".log").tempfile_in(&self.path);
        made.with_context(|| format!("making the log in {}", self.path.display()))
    }

    /// Makes and opens a machine's socket. Without a name one is generated.
    ///
    /// # Errors
    /// A machine of this name runs already; the socket can't be made.
    pub fn claim(&self, wanted: Option<&str>) -> Result<Claim> {
        let _lock = self.lock()?;
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => self.unused()?,
        };
        let path = self.socket(&name);
        if !self.is_free(&name)? {
            return Err(exit::usage(format!("a machine called {name} runs already; `stile ps` lists the machines")));
        }
        self.remove_old_logs();
        let listener = UnixListener::bind(&path).with_context(|| format!("making the control socket {}", path.display()))?;
        // Until now the directory's mode protected it.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).with_context(|| format!("protecting {}", path.display()))?;
        Ok(Claim { name, path, listener, directory: self.clone() })
    }

    /// The names of machines that run. Stale sockets are removed.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn machines(&self) -> Result<Vec<String>> {
        let _lock = self.lock()?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).with_context(|| format!("reading {}", self.path.display()))? {
            let path = entry?.path();
            let name = path.file_stem().and_then(OsStr::to_str).filter(|_| path.extension() == Some(OsStr::new(EXTENSION)));
            if let Some(name) = name
                && !self.is_free(name)?
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Connects to a machine.
    ///
    /// # Errors
    /// No machine of this name runs, or it accepts no connection within `limit`.
    pub fn connect(&self, name: &str, limit: Duration) -> Result<UnixStream> {
        match reach(&self.socket(name), limit) {
            Ok(stream) => Ok(stream),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                let names = self.machines()?;
                if names.is_empty() {
                    return Err(exit::usage(format!("no machine runs, so none called {name}")));
                }
                let guess =
                    similar(name, names.iter().map(String::as_str)).map_or(String::new(), |guess| format!(" (did you mean {guess}?)"));
                Err(exit::usage(format!("no machine called {name} runs{guess}; running: {}", names.join(", "))))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("{name} accepts no connections: its process hangs"),
            Err(error) => Err(error).with_context(|| format!("connecting to {name}")),
        }
    }

    /// Removes the logs of detached machines that have ended, but for the latest ones. Best-effort. The lock is held.
    fn remove_old_logs(&self) {
        let files = fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut logs: Vec<_> = files
            .filter(|path| path.extension() == Some(OsStr::new(LOG)))
            .filter(|path| {
                let name = path.file_stem().and_then(OsStr::to_str);
                // Names that begin with a dot are of logs whose machine starts.
                name.is_some_and(|name| !name.starts_with('.') && self.is_free(name).unwrap_or(false))
            })
            .filter_map(|path| Some((fs::symlink_metadata(&path).and_then(|data| data.modified()).ok()?, path)))
            .collect();
        logs.sort();
        for (_, path) in logs.iter().rev().skip(LOGS) {
            let _ = fs::remove_file(path);
        }
    }

    /// Generates a name that no machine has.
    fn unused(&self) -> Result<String> {
        for _ in 0..ATTEMPTS {
            let mut random = [0; 6];
            getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("no random name: {error}"))?;
            let name = name::pronounceable(random);
            if !self.socket(&name).exists() {
                return Ok(name);
            }
        }
        bail!("no unused name was found; give one with --name")
    }

    /// Whether no machine listens at a name's socket; a stale one is removed. The lock is held.
    fn is_free(&self, name: &str) -> Result<bool> {
        let path = self.socket(name);
        // Others wait for the lock.
        match reach(&path, Duration::from_millis(1)) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(&path).with_context(|| format!("removing the stale socket {}", path.display()))?;
                Ok(true)
            }
            // Its queue of connections is full, for example.
            Err(_) => Ok(false),
        }
    }

    fn lock(&self) -> Result<File> {
        let path = self.path.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
        Ok(file)
    }
}

/// Connects to a socket.
///
/// # Errors
/// As [`UnixStream::connect`]; [`ErrorKind::WouldBlock`] if its queue of connections stays full for so long.
fn reach(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The limit applies to a connect, too (socket(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    connect(&socket, &address)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn directory() -> (tempfile::TempDir, Directory) {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::at(dir.path().join("stile")).unwrap();
        (dir, directory)
    }

    #[test]
    fn a_name_has_one_machine() {
        let (_dir, directory) = directory();
        let claim = directory.claim(Some("web")).unwrap();
        assert_eq!(fs::metadata(&claim.path).unwrap().mode() & 0o777, 0o600);
        assert!(directory.claim(Some("web")).unwrap_err().to_string().contains("runs already"));
        assert_eq!(directory.machines().unwrap(), ["web"]);
        drop(claim);
        assert_eq!(directory.machines().unwrap(), Vec::<String>::new());
        directory.claim(Some("web")).unwrap();
    }

    #[test]
    fn a_stale_socket_is_removed() {
        let (_dir, directory) = directory();
        for name in ["old", "older"] {
            drop(UnixListener::bind(directory.socket(name)).unwrap());
        }
        assert!(directory.socket("old").exists());
        // A child process that another test forks keeps copies of the sockets until exec.
        let is_removed = |_| {
            std::thread::sleep(Duration::from_millis(10));
            directory.claim(Some("old")).is_ok() && directory.machines().unwrap().is_empty()
        };
        assert!((0..1000).any(is_removed));
        assert!(!directory.socket("older").exists());
    }

    #[test]
    fn logs_of_machines_that_ended_are_removed() {
        let (_dir, directory) = directory();
        let running = directory.claim(Some("running")).unwrap();
        let log = |name: &str, age: u64| {
            let file = File::create(directory.log(name)).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age)).unwrap();
        };
        (0..30).for_each(|age| log(&format!("m{age}"), age));
        log("running", 500);
        let starting = directory.new_log("starting").unwrap();
        let _claim = directory.claim(None).unwrap();
        let kept = |name: &str| directory.log(name).exists();
        assert!((0..30).all(|age| kept(&format!("m{age}")) == (age < 16)), "the latest are kept");
        assert!(kept("running") && starting.path().exists());
        // Its log is older than those.
        drop(running);
        let _claim = directory.claim(None).unwrap();
        assert!(!kept("running"));
    }

    #[test]
    fn a_machine_that_accepts_no_connections_blocks_no_other() {
        let (_dir, directory) = directory();
        let claim = directory.claim(Some("stuck")).unwrap();
        // Until its queue is full.
        let mut waiting = Vec::new();
        while let Ok(stream) = reach(&claim.path, Duration::from_millis(1)) {
            waiting.push(stream);
        }
        let _other = directory.claim(Some("web")).unwrap();
        assert_eq!(directory.machines().unwrap(), ["stuck", "web"]);
        assert!(directory.claim(Some("stuck")).is_err());
    }

    #[test]
    fn generated_names_differ() {
        let (_dir, directory) = directory();
        let claims: Vec<Claim> = (0..20).map(|_| directory.claim(None).unwrap()).collect();
        assert_eq!(directory.machines().unwrap().len(), claims.len());
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let (dir, directory) = directory();
        fs::set_permissions(&directory.path, Permissions::from_mode(0o755)).unwrap();
        assert!(Directory::at(directory.path.clone()).unwrap_err().to_string().contains("mode 0755"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(Directory::at(link).unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn stale_sockets_are_detected() {
        let (_dir, directory) = directory();
        assert!(directory.connect("web", LIMIT).unwrap_err().to_string().starts_with("no machine runs"));
        let _claim = directory.claim(Some("db")).unwrap();
        assert!(directory.connect("web", LIMIT).unwrap_err().to_string().ends_with("running: db"));
        directory.connect("db", LIMIT).unwrap();
    }
}
