//! The test of a port of this machine that leads to a VM's sockets, which the VM `service` serves.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "served/host-sockets";

/// Pause between attempts: the VM listens once it has started.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest wait for bytes of the VM.
const LIMIT: Duration = Duration::from_secs(30);

/// The host and a VM send each other some numbers.
pub fn test() -> Result<(), String> {
    let port =
        TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(|error| format!("no port: {error}"))?.port();
    let exec = "seq 20000 > /tmp/numbers; until stile-vsock 22 < /tmp/numbers > /tmp/got && cmp /tmp/numbers /tmp/got; do true; done; \
                echo the same numbers";
    let expect = Expect { output: vec!["the same numbers".into()], notes: vec![NO_DIFFERENCE.into(); 2], ..Expect::default() };
    let scenario = Scenario::new(NAME, "--exits --smp 2 --kernel debian --memory 256M")
        .with("--vsock", format!("forward={port}:22"))
        .with("--exec", exec);
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let (has_ended, has_same) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // The VM may have got less the last time.
            while !has_ended.load(Ordering::Relaxed) {
                let is_same = exchange(port, &numbers).is_ok_and(|answer| answer == numbers);
                has_same.fetch_or(is_same, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
        let result = Scenario { expect, ..scenario }.run();
        has_ended.store(true, Ordering::Relaxed);
        result
    })?;
    if has_same.load(Ordering::Relaxed) { Ok(()) } else { Err("the host got other numbers".to_owned()) }
}

/// Sends a text, and returns the answer.
fn exchange(port: u16, text: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
