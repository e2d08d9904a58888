//! The sockets that lead from each socket device's process to those of the others.
//!
//! The supervisor has both ends of each: messages for a process that has died wait for the next one.

use std::env;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Variable that tells a process of its sockets: addresses and numbers of files.
const VARIABLE: &str = "STILE_VSOCK_LINKS";

/// An end of a socket.
struct End {
    /// Number of the device whose process has it.
    device: usize,
    /// Address of the other end's client.
    peer: u32,
    socket: OwnedFd,
}

/// A socket between each two devices.
#[derive(Default)]
pub struct Mesh(Vec<End>);

impl Mesh {
    /// The sockets for devices, given by their numbers and their clients' addresses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(devices: &[(usize, u32)]) -> io::Result<Self> {
        let mut ends = Vec::new();
        for (index, first) in devices.iter().enumerate() {
            for second in &devices[..index] {
                let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
                ends.push(End { device: first.0, peer: second.1, socket: pair.0 });
                ends.push(End { device: second.0, peer: first.1, socket: pair.1 });
            }
        }
        Ok(Self(ends))
    }

    /// Has a process of a device's inherit its sockets, and no others.
    pub fn give(&self, device: usize, command: &mut Command) {
        let own: Vec<&End> = self.0.iter().filter(|end| end.device == device).collect();
        if own.is_empty() {
            return;
        }
        let text = |end: &&End| format!("{}:{}", end.peer, end.socket.as_raw_fd());
        command.env(VARIABLE, own.iter().map(text).collect::<Vec<_>>().join(","));
        let files: Vec<i32> = own.iter().map(|end| end.socket.as_raw_fd()).collect();
        let inherit = move || {
            for file in &files {
                // SAFETY: the supervisor, of which this process is a copy, keeps the sockets open until it ends.
                fcntl_setfd(unsafe { BorrowedFd::borrow_raw(*file) }, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: the function makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(inherit) };
    }

    /// The sockets that this process has inherited, by the addresses of their other ends. To be called once.
    ///
    /// # Errors
    /// The variable has another form.
    pub fn inherited() -> io::Result<Vec<(u32, OwnedFd)>> {
        let Ok(links) = env::var(VARIABLE) else { return Ok(Vec::new()) };
        let link = |text: &str| {
            let (peer, file) = text.split_once(':')?;
            let (peer, file) = (peer.parse().ok()?, file.parse().ok()?);
            // SAFETY: the supervisor has opened the file for this process, in which nothing else has its number.
            Some((peer, unsafe { OwnedFd::from_raw_fd(file) }))
        };
        links.split(',').map(link).collect::<Option<_>>().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}
