//! Bochs' serial line: a TCP connection from the emulator's process, and from no other.
//!
//! Bochs can only connect to a TCP port, as any local user can: without a check, the first connection would be taken for
//! the machine's.

use std::fs;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::Emulator;
use crate::exit;

/// Time limit from Bochs' start to the connection of the serial line.
const CONNECT: Duration = Duration::from_secs(60);

/// Further looks for a connection in the kernel's list, which may miss one while others come and go.
const TRIES: u32 = 20;

/// Interval at which connections and Bochs' end are polled.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until Bochs has connected its serial line. Connections of other processes are closed.
///
/// # Errors
/// Bochs ends or does not connect; the kernel does not tell whose connections there are.
pub(super) fn connection(listener: &TcpListener, emulator: &mut Emulator) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + CONNECT;
    loop {
        let mut pause = Duration::ZERO;
        match listener.accept() {
            Ok((line, peer)) if is_of(emulator.pid(), peer, line.local_addr()?)? => {
                line.set_nonblocking(false)?;
                line.set_nodelay(true)?;
                return Ok(line);
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => pause = INTERVAL,
            // The peer has left the queue of connections.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error).context("waiting for the serial line"),
        }
        if let Some(status) = emulator.wait(pause) {
            return Err(exit::emulator(format!("Bochs ended at once ({status}): unknown CPU model, or unknown line of --machine-option?")));
        }
        if Instant::now() > until {
            return Err(exit::emulator("Bochs does not connect its serial line"));
        }
    }
}

/// Whether a process has the socket at the `peer`'s end of a connection to `local` open. Bochs opens it before it connects, and
/// keeps it until it ends.
fn is_of(pid: u32, peer: SocketAddr, local: SocketAddr) -> Result<bool> {
    let (SocketAddr::V4(peer), SocketAddr::V4(local)) = (peer, local) else { bail!("the serial line is not an IPv4 connection") };
    let mut tries = 0..TRIES;
    let socket = loop {
        let sockets = fs::read_to_string("/proc/net/tcp").context("reading /proc/net/tcp, which tells whose serial line it is")?;
        match inode(&sockets, peer, local) {
            Some(inode) => break format!("socket:[{inode}]"),
            None if tries.next().is_none() => return Ok(false),
            None => thread::sleep(INTERVAL),
        }
    };
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    Ok(files.filter_map(|file| fs::read_link(file.path()).ok()).any(|open| open == Path::new(&socket)))
}

/// The inode of the socket at `local` that is connected to `remote`, from the text of `/proc/net/tcp` (proc_net_tcp in the kernel's
/// documentation): columns 1 and 2 are the addresses, column 9 the inode.
fn inode(sockets: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<&str> {
    // The kernel prints an address's four bytes as one number in the CPU's byte order.
    let text = |address: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    let (local, remote) = (text(local), text(remote));
    sockets.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        (*columns.get(1)? == local && *columns.get(2)? == remote).then_some(*columns.get(9)?)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_the_emulators_connection_is_taken() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut stray = TcpStream::connect(address).unwrap();
        // The process has the connection that was made for it, and echoes.
        let line = OwnedFd::from(TcpStream::connect(address).unwrap());
        let output = Stdio::from(line.try_clone().unwrap());
        let mut command = Command::new("cat");
        command.stdin(Stdio::from(line)).stdout(output);
        let mut emulator = Emulator::spawn(&mut command, |status| status.success(), None).unwrap();
        // Its ends of the connection here.
        drop(command);

        let mut line = connection(&listener, &mut emulator).unwrap();
        let mut echo = [0; 5];
        line.write_all(b"stile").unwrap();
        stray.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stray.read(&mut echo).unwrap(), 0, "the stray connection is closed");
        line.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"stile");
    }

    #[test]
    fn an_emulator_that_ends_is_reported() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _stray = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut emulator = Emulator::spawn(&mut Command::new("true"), |status| status.success(), None).unwrap();
        assert!(connection(&listener, &mut emulator).unwrap_err().to_string().contains("ended at once"));
    }
}
