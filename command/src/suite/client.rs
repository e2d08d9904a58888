//! A client of a machine's control socket that disconnects in the middle of its request, like a command that is killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Name of the machine that an operator's steps are about.
pub const MACHINE: &str = "m";

/// Time-out of the whole.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes by which the progress of a restoration grows with each piece of state or RAM; less with the VM's files.
const PIECE: u64 = 1 << 16;

/// A request whose client disconnects.
#[derive(Debug, Clone, Copy)]
pub enum Broken {
    /// The pause for a snapshot of this VM: disconnects once it is paused. The VM must run again.
    Hold(&'static str),
    /// The restoration of a file with this VM: disconnects once its RAM is being restored. The VM must be gone.
    Restore(&'static str, &'static str),
}

impl Broken {
    /// Makes the request of the machine whose control socket is under `runtime`. The error is a report for people.
    pub fn run(self, runtime: &Path) -> Result<String, String> {
        self.try_run(runtime).map_err(|error| format!("{self:?}: {error}"))
    }

    fn try_run(self, runtime: &Path) -> std::io::Result<String> {
        let end = Instant::now() + LIMIT;
        let mut client = Client::connect(runtime)?;
        match self {
            Self::Hold(vm) => {
                client.ask(&json!({"type": "hold", "vm": vm}))?;
                while client.state(vm)? != "paused" {
                    pause(end, "it is not paused")?;
                }
            }
            Self::Restore(file, _) => {
                let mut reply = client.ask(&json!({"type": "restore", "file": runtime.join(file), "clock": "real"}))?;
                let mut before = u64::MAX;
                while let Some(done) = reply["done"].as_u64().filter(|done| before.saturating_add(PIECE) > *done) {
                    before = done;
                    reply = client.receive()?;
                }
                if reply["type"] != "progress" {
                    return Err(std::io::Error::other(reply.to_string()));
                }
            }
        }
        drop(client);
        let mut other = Client::connect(runtime)?;
        let (vm, wanted) = match self {
            Self::Hold(vm) => (vm, "running"),
            Self::Restore(_, vm) => (vm, ""),
        };
        while other.state(vm)? != wanted {
            pause(end, "the VM is still there, or paused")?;
        }
        Ok(String::new())
    }
}

fn pause(end: Instant, what: &str) -> std::io::Result<()> {
    if Instant::now() > end {
        return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, what));
    }
    thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// A connection.
struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    fn connect(runtime: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(runtime.join("stile").join(MACHINE).with_extension("sock"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut client = Self { stream: BufReader::new(stream) };
        client.ask(&json!({"type": "hello", "version": 1}))?;
        Ok(client)
    }

    /// Sends a request. Returns its first reply.
    fn ask(&mut self, request: &Value) -> std::io::Result<Value> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        self.receive()
    }

    fn receive(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The state of a VM; empty if there is none of this name.
    fn state(&mut self, vm: &str) -> std::io::Result<String> {
        let reply = self.ask(&json!({"type": "state", "vm": vm}))?;
        Ok(reply["state"].as_str().unwrap_or_default().to_owned())
    }
}
