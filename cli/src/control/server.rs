//! The machine's side of the control socket: a thread accepts clients, two threads for each client read requests and write replies.

use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;

use super::directory::Claim;
use super::protocol::{self, Reply, Request, VERSION};

/// Replies that may wait for a client that does not read; a slower client is disconnected.
const WAITING: usize = 1024;

/// Clients that may be connected at a time.
const CLIENTS: usize = 64;

/// Time-out for a client's protocol version.
const HELLO: Duration = Duration::from_secs(10);

/// Time-out for the last reply.
const FINISH: Duration = Duration::from_secs(1);

/// Delay before connections are accepted again.
const PAUSE: Duration = Duration::from_millis(100);

/// A client's number, unique among those of a machine.
pub type ClientId = u64;

/// Events of clients.
#[derive(Debug)]
pub enum Message {
    /// It connected, and speaks the protocol.
    Connected(ClientId, Client),
    /// It sent a request other than [`Request::Hello`].
    Request(ClientId, Request),
    /// The client has disconnected.
    Gone(ClientId),
}

/// A connected client.
#[derive(Debug)]
pub struct Client {
    replies: SyncSender<Reply>,
    stream: UnixStream,
    /// Disconnected once all replies are written.
    written: Receiver<()>,
}

impl Client {
    /// Sends a reply. Returns false if the client has disconnected or was disconnected as too slow.
    pub fn send(&self, reply: Reply) -> bool {
        match self.replies.try_send(reply) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                let _ = self.stream.shutdown(Shutdown::Both);
                false
            }
        }
    }

    /// Sends the last reply, and waits until it is written: the process may end then.
    pub fn finish(self, last: Reply) {
        let _ = self.replies.try_send(last);
        let Self { replies, written, .. } = self;
        drop(replies);
        let _ = written.recv_timeout(FINISH);
    }
}

/// The user id of a stream's other end.
type PeerUid = fn(&UnixStream) -> io::Result<u32>;

/// Serves a machine's socket. Events of its clients are passed to `report`, which returns false to stop.
///
/// # Errors
/// The socket can't be used.
pub fn serve(claim: &Claim, report: impl Fn(Message) -> bool + Clone + Send + 'static) -> Result<()> {
    let listener = claim.listener.try_clone().context("sharing the control socket")?;
    thread::spawn(move || accept(&listener, peer_uid, &report));
    Ok(())
}

fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

fn accept(listener: &UnixListener, peer_uid: PeerUid, report: &(impl Fn(Message) -> bool + Clone + Send + 'static)) {
    let connected = Arc::new(AtomicUsize::new(0));
    for id in 0.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_transient(&error) => {
                thread::sleep(PAUSE);
                continue;
            }
            Err(_) => return,
        };
        let (report, place) = (report.clone(), Place::take(&connected));
        let started = thread::Builder::new().spawn(move || match place {
            Some(_place) => drop(client(id, stream, peer_uid, &report)),
            None => drop(turn_away(&stream)),
        });
        if started.is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether an error of `accept` passes by itself: a client left, or this process or computer has too many open files.
fn is_transient(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::CONNABORTED | Errno::INTR))
}

/// Refuses a client for which there is no place.
fn turn_away(stream: &UnixStream) -> io::Result<()> {
    // A client that is disconnected before it has sent its request does not read the reply.
    stream.set_read_timeout(Some(FINISH))?;
    protocol::read::<Request>(&mut BufReader::new(stream))?;
    let message = format!("{CLIENTS} clients are connected: end one of them");
    protocol::write(&mut &*stream, &Reply::Refused { message })
}

/// A place out of [`CLIENTS`], freed when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a client until it disconnects.
fn client(id: ClientId, stream: UnixStream, peer_uid: PeerUid, report: &impl Fn(Message) -> bool) -> io::Result<()> {
    let refuse = |message: String| {
        let mut to = &stream;
        protocol::write(&mut to, &Reply::Refused { message })
    };
    let own = rustix::process::geteuid().as_raw();
    match peer_uid(&stream)? {
        // Root may do everything in any case.
        uid if uid == own || uid == 0 => {}
        uid => return refuse(format!("this machine is another user's: you are user {uid}")),
    }
    stream.set_read_timeout(Some(HELLO))?;
    let mut requests = BufReader::new(stream.try_clone()?);
    match protocol::read(&mut requests) {
        Ok(Some(Request::Hello { version: VERSION })) => {}
        Ok(Some(Request::Hello { version })) => {
            return refuse(format!(
                "this machine's stile speaks version {VERSION} of the protocol, and yours version {version}: use the same stile"
            ));
        }
        Ok(Some(_)) => return refuse("expected hello first".into()),
        Ok(None) => return Ok(()),
        Err(error) => return refuse(error.to_string()),
    }
    stream.set_read_timeout(None)?;
    let (replies, queue) = sync_channel(WAITING);
    let mut writer = stream.try_clone()?;
    let (done, written) = sync_channel(0);
    let writing = thread::Builder::new().spawn(move || {
        write(&mut writer, &queue);
        drop(done);
    })?;
    let connected = Client { replies, stream: stream.try_clone()?, written };
    connected.send(Reply::Hello { version: VERSION });
    if !report(Message::Connected(id, connected)) {
        return Ok(());
    }
    loop {
        match protocol::read(&mut requests) {
            Ok(Some(request)) => {
                if !report(Message::Request(id, request)) {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                let _ = refuse(format!("not understood: {error}"));
                break;
            }
        }
    }
    report(Message::Gone(id));
    let _ = stream.shutdown(Shutdown::Read);
    let _ = writing.join();
    Ok(())
}

fn write(to: &mut impl Write, queue: &Receiver<Reply>) {
    for reply in queue {
        if protocol::write(to, &reply).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A server that takes its clients for this user's, their requests, and a function that connects.
    fn serve_as(uid: PeerUid) -> (tempfile::TempDir, Receiver<Message>, impl Fn() -> (BufReader<UnixStream>, UnixStream)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (send, messages) = channel();
        thread::spawn(move || accept(&listener, uid, &move |message| send.send(message).is_ok()));
        let connect = move || {
            let stream = UnixStream::connect(&path).unwrap();
            (BufReader::new(stream.try_clone().unwrap()), stream)
        };
        (dir, messages, connect)
    }

    fn own(_: &UnixStream) -> io::Result<u32> {
        Ok(rustix::process::geteuid().as_raw())
    }

    fn hello(stream: &mut UnixStream, version: u32) {
        protocol::write(stream, &Request::Hello { version }).unwrap();
    }

    fn refusal(replies: &mut BufReader<UnixStream>) -> String {
        match protocol::read(replies).unwrap() {
            Some(Reply::Refused { message }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_peers_user_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&one).unwrap(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn two_clients_are_served_and_told_apart() {
        let (_dir, messages, connect) = serve_as(own);
        let (mut first_replies, mut first) = connect();
        let (mut second_replies, mut second) = connect();
        hello(&mut first, VERSION);
        let Message::Connected(first_id, first_client) = messages.recv().unwrap() else { panic!() };
        hello(&mut second, VERSION);
        let Message::Connected(second_id, second_client) = messages.recv().unwrap() else { panic!() };
        assert_ne!(first_id, second_id);
        protocol::write(&mut second, &Request::Status).unwrap();
        assert!(matches!(messages.recv().unwrap(), Message::Request(id, Request::Status) if id == second_id));
        assert!(second_client.send(Reply::Hello { version: 7 }) && first_client.send(Reply::Ended));
        for (replies, last) in [(&mut first_replies, Reply::Ended), (&mut second_replies, Reply::Hello { version: 7 })] {
            assert_eq!(protocol::read(replies).unwrap(), Some(Reply::Hello { version: VERSION }));
            assert_eq!(protocol::read(replies).unwrap(), Some(last));
        }
        drop((first, first_replies));
        assert!(matches!(messages.recv().unwrap(), Message::Gone(id) if id == first_id));
    }

    #[test]
    fn a_client_too_many_is_told() {
        let (_dir, messages, connect) = serve_as(own);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
        for (_, stream) in &mut clients {
            hello(stream, VERSION);
            assert!(matches!(messages.recv().unwrap(), Message::Connected(..)));
        }
        let (mut replies, mut stream) = connect();
        hello(&mut stream, VERSION);
        assert!(refusal(&mut replies).contains("64 clients are connected"));
    }

    #[test]
    fn another_user_is_refused() {
        let (_dir, messages, connect) = serve_as(|stream| own(stream).map(|uid| uid + 1));
        let (mut replies, mut stream) = connect();
        hello(&mut stream, VERSION);
        assert!(refusal(&mut replies).contains("another user's"));
        assert!(messages.try_recv().is_err());
    }

    #[test]
    fn another_version_is_refused() {
        let (_dir, _messages, connect) = serve_as(own);
        let (mut replies, mut stream) = connect();
        hello(&mut stream, VERSION + 1);
        assert!(refusal(&mut replies).contains(&format!("yours version {}", VERSION + 1)));
    }

    #[test]
    fn garbage_ends_only_its_client() {
        let (_dir, messages, connect) = serve_as(own);
        let (mut replies, mut stream) = connect();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        refusal(&mut replies);
        let (_replies, mut stream) = connect();
        hello(&mut stream, VERSION);
        assert!(matches!(messages.recv().unwrap(), Message::Connected(..)));
        stream.write_all(b"{}\n").unwrap();
        assert!(matches!(messages.recv().unwrap(), Message::Gone(_)));
    }

    #[test]
    fn a_client_that_does_not_read_is_disconnected() {
        let (_dir, messages, connect) = serve_as(own);
        let (_replies, mut stream) = connect();
        hello(&mut stream, VERSION);
        let Message::Connected(_, client) = messages.recv().unwrap() else { panic!() };
        let output = Reply::Output { bytes: protocol::Bytes(vec![b'x'; 64 << 10]) };
        assert!((0..10 * WAITING).any(|_| !client.send(output.clone())));
        assert!(matches!(messages.recv().unwrap(), Message::Gone(_)));
    }
}
