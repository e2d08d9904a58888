//! `stile-vsock PORT|CID PORT`: waits for a connection to a port of this VM, or connects to one of another VM. Then standard input goes to the
//! connection, and what comes by it to standard output, until both have ended.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::thread;

use rustix::net::{AddressFamily, Shutdown, SocketType, accept, listen, shutdown, socket};

fn main() -> ExitCode {
    let arguments: Option<Vec<u32>> = std::env::args().skip(1).map(|argument| argument.parse().ok()).collect();
    let connection = match arguments.as_deref() {
        Some([port]) => wait(*port),
        Some([cid, port]) => connect(*cid, *port),
        _ => {
            eprintln!("usage: stile-vsock PORT waits for a connection; stile-vsock CID PORT connects to a VM");
            return ExitCode::FAILURE;
        }
    };
    match connection.and_then(pass) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stile-vsock: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An address of Linux's, and its size in bytes.
fn address(cid: u32, port: u32) -> (libc::sockaddr_vm, libc::socklen_t) {
    // SAFETY: the structure has numbers only, of which all may be 0.
    let mut address: libc::sockaddr_vm = unsafe { mem::zeroed() };
    (address.svm_family, address.svm_cid, address.svm_port) = (libc::AF_VSOCK as libc::sa_family_t, cid, port);
    (address, mem::size_of::<libc::sockaddr_vm>() as libc::socklen_t)
}

fn result(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::VSOCK, SocketType::STREAM, None)?)
}

fn wait(port: u32) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let (address, size) = address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the address is valid for reads of its size.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    listen(&socket, 1)?;
    Ok(accept(&socket)?)
}

fn connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let (address, size) = address(cid, port);
    // SAFETY: the address is valid for reads of its size.
    result(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(socket)
}

/// Copies in both directions.
fn pass(connection: OwnedFd) -> io::Result<()> {
    let (mut to, mut from) = (File::from(connection.try_clone()?), File::from(connection));
    let sender = thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut to)?;
        Ok::<_, io::Error>(shutdown(&to, Shutdown::Write)?)
    });
    io::copy(&mut from, &mut io::stdout())?;
    sender.join().unwrap_or(Ok(()))
}
