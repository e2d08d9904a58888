//! The client's side of the control socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::directory::Directory;
use super::name;
use super::protocol::{self, Reply, Request, Status, VERSION};
use crate::exit;

/// Time-out for a machine's answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection to a machine.
#[derive(Debug)]
pub struct Connection {
    /// The machine's name.
    pub name: String,
    replies: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Connection {
    /// Connects to a machine.
    ///
    /// # Errors
    /// It does not run, refuses, or does not answer.
    pub fn open(directory: &Directory, name: &str) -> Result<Self> {
        Self::open_within(directory, name, ANSWER)
    }

    /// Connects to a machine, which answers each request within `limit`.
    ///
    /// # Errors
    /// See [`Connection::open`].
    pub fn open_within(directory: &Directory, name: &str, limit: Duration) -> Result<Self> {
        if let Err(expected) = name::check(name) {
            return Err(exit::usage(format!("\"{name}\" is not a machine's name; {expected}")));
        }
        let stream = directory.connect(name, limit)?;
        stream.set_read_timeout(Some(limit)).context("setting up the control socket")?;
        let replies = BufReader::new(stream.try_clone().context("sharing the control socket")?);
        let mut connection = Self { name: name.to_owned(), replies, stream };
        connection.send(&Request::Hello { version: VERSION })?;
        match connection.receive()? {
            Reply::Hello { version: VERSION } => Ok(connection),
            Reply::Refused { message } => bail!("{name}: {message}"),
            other => bail!("{name}: unexpected answer: {other:?}"),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The machine has ended.
    pub fn send(&mut self, request: &Request) -> Result<()> {
        protocol::write(&mut self.stream, request).with_context(|| format!("{}: the machine is gone", self.name))
    }

    /// Receives a reply.
    ///
    /// # Errors
    /// The machine has ended, or did not answer in time.
    pub fn receive(&mut self) -> Result<Reply> {
        self.receive_or_end()?.ok_or_else(|| anyhow!("{}: the machine is gone", self.name))
    }

    /// Receives a reply; `None` if the machine has ended.
    ///
    /// # Errors
    /// It did not answer in time, or not in the protocol.
    pub fn receive_or_end(&mut self) -> Result<Option<Reply>> {
        match protocol::read(&mut self.replies) {
            Ok(Some(Reply::Ended) | None) => Ok(None),
            Ok(Some(reply)) => Ok(Some(reply)),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => Ok(None),
            Err(error) if is_late(&error) => {
                let limit = self.stream.read_timeout().ok().flatten().unwrap_or(ANSWER);
                bail!("{}: no answer within {limit:?}", self.name)
            }
            Err(error) => Err(error).with_context(|| self.name.clone()),
        }
    }

    /// Receives a reply. Returns `None` if none arrives within the time of [`Connection::set_patience`] and `may_be` allows that.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn receive_for(&mut self, may_be: bool) -> Result<Option<Reply>> {
        // Part of a reply that was read would be lost with the time-out.
        if may_be && self.replies.buffer().is_empty() && !self.has_input()? {
            return Ok(None);
        }
        self.stream.set_read_timeout(Some(ANSWER)).context("setting up the control socket")?;
        self.receive().map(Some)
    }

    /// Waits for input for so long as [`Connection::set_patience`] says.
    fn has_input(&self) -> Result<bool> {
        match rustix::net::recv(&self.stream, &mut [0; 1], RecvFlags::PEEK) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("waiting for the machine"),
        }
    }

    /// The machine's state.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn status(&mut self) -> Result<Status> {
        self.send(&Request::Status)?;
        loop {
            match self.receive()? {
                Reply::Status(status) => return Ok(status),
                Reply::Refused { message } => bail!("{}: {message}", self.name),
                _ => {}
            }
        }
    }

    /// Whether the machine has ended, while no request is open: its last message was received, or the socket is closed.
    pub fn has_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let waiting = matches!(rustix::net::recv(&self.stream, &mut [0; 1], flags), Err(Errno::AGAIN | Errno::INTR));
        !waiting || !self.replies.buffer().is_empty()
    }

    /// Waits for replies for so long only; without a limit, forever.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn set_patience(&self, limit: Option<Duration>) -> Result<()> {
        self.stream.set_read_timeout(limit).context("setting up the control socket")
    }

    /// Splits the connection into its receiving and its sending half.
    pub fn split(self) -> (BufReader<UnixStream>, UnixStream) {
        (self.replies, self.stream)
    }
}

/// Whether a read ended because its time was up.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
