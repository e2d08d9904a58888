//! A small HTTP/1.1 server (RFC 9112): one request for each connection, in a thread of its own, with limits for length and time.
//!
//! A client delays no other one. Requests that it sends without waiting for answers are discarded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections at a time; others are closed.
const CONNECTIONS: usize = 64;

/// Maximum length of a request's head in bytes.
const HEAD: usize = 8 * 1024;

/// Maximum number of bytes behind the head that are read and discarded.
const REST: u64 = 64 * 1024;

/// Time limit for a request, and again for its answer.
pub const LIMIT: Duration = Duration::from_secs(10);

/// A request that is to be answered.
#[derive(Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The path, with a query.
    pub target: String,
    answer: SyncSender<Answer>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status, with its reason.
    pub status: &'static str,
    /// Further headers, each with its end of line.
    pub headers: String,
    /// The body.
    pub text: Arc<str>,
    /// Dropped once the answer is written.
    pub writing: Option<Sender<()>>,
}

impl Request {
    /// Answers it.
    pub fn answer(self, answer: Answer) {
        // Its thread waits for it without a limit.
        let _ = self.answer.send(answer);
    }
}

/// Accepts connections and passes their requests on. Returns when connections can't be accepted any more.
pub fn accept(listener: &TcpListener, requests: &SyncSender<Request>) {
    // Shared by the connections' threads.
    let connected = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(_) => return,
        };
        if Arc::strong_count(&connected) > CONNECTIONS {
            continue;
        }
        let (requests, connection) = (requests.clone(), Arc::clone(&connected));
        // Without memory for a thread, the connection is closed.
        let _ = thread::Builder::new().spawn(move || {
            // It fails if the client disconnects or is slow.
            let _ = serve(&stream, &requests);
            drop((stream, connection));
        });
    }
}

/// Reads a request and writes its answer.
fn serve(stream: &TcpStream, requests: &SyncSender<Request>) -> io::Result<()> {
    let mut client = Timed { stream, until: Instant::now() + LIMIT };
    let (answer, answers) = sync_channel(1);
    let head = head(&mut client)?;
    let Some((method, target)) = head.as_deref().and_then(request_line) else {
        let text = "expected a request of HTTP/1.1\n".into();
        return respond(stream, Answer { status: "400 Bad Request", headers: String::new(), text, writing: None }, true);
    };
    let with_body = method != "HEAD";
    let request = Request { method: method.to_owned(), target: target.to_owned(), answer };
    // Neither fails unless the server ends.
    let gone = || io::Error::from(ErrorKind::BrokenPipe);
    requests.send(request).map_err(|_| gone())?;
    let answer = answers.recv().map_err(|_| gone())?;
    respond(stream, answer, with_body)
}

/// Reads up to the empty line at the head's end; `None` if there is none.
fn head(client: &mut Timed<'_>) -> io::Result<Option<String>> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            count => head.extend_from_slice(&buffer[..count]),
        }
        if let Some(end) = memchr::memmem::find(&head, b"\r\n\r\n") {
            head.truncate(end);
            return Ok(String::from_utf8(head).ok());
        }
        if head.len() > HEAD {
            return Ok(None);
        }
    }
}

/// The method and target of a request's first line.
fn request_line(head: &str) -> Option<(&str, &str)> {
    let [method, target, version] = head.lines().next()?.split(' ').collect::<Vec<_>>()[..] else { return None };
    version.starts_with("HTTP/1.").then_some((method, target))
}

/// Writes an answer and closes the connection.
fn respond(stream: &TcpStream, answer: Answer, with_body: bool) -> io::Result<()> {
    let mut client = Timed { stream, until: Instant::now() + LIMIT };
    let Answer { status, headers, text, writing } = answer;
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    client.write_all(head.as_bytes())?;
    if with_body {
        client.write_all(text.as_bytes())?;
    }
    stream.shutdown(Shutdown::Write)?;
    drop(writing);
    // A connection that is closed before all is read is reset, and the client may lose the answer.
    io::copy(&mut client.take(REST), &mut io::sink()).map(|_| ())
}

/// A connection with a time limit for all that is read and written.
struct Timed<'s> {
    stream: &'s TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Returns the answer of a server that echoes the method and target.
    fn ask(text: &[u8]) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (send, requests) = sync_channel::<Request>(0);
        thread::spawn(move || accept(&listener, &send));
        thread::spawn(move || {
            for request in requests {
                let text = format!("{} {}", request.method, request.target).into();
                request.answer(Answer { status: "200 OK", headers: "A: b\r\n".into(), text, writing: None });
            }
        });
        client.write_all(text).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_connection_has_one_answer() {
        let head = "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 6\r\nConnection: close\r\n\r\n";
        assert_eq!(ask(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\n\r\n"), format!("{head}GET /a"));
        assert_eq!(ask(b"GET / HTTP/1.0\r\n\r\n"), format!("{}GET /", head.replace('6', "5")));
        assert_eq!(ask(b"HEAD / HTTP/1.1\r\n\r\n"), head);
    }

    #[test]
    fn other_texts_are_refused() {
        let long = [b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; HEAD]].concat();
        for text in [b"".as_slice(), b"GET /\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"\xff\r\n\r\n", b"GET / HTTP/1.1\r\n", &long] {
            assert!(ask(text).starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text:?}");
        }
    }
}
