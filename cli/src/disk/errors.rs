//! Errors of the emulator's disks. A guest sees only an I/O error; QEMU reports the file and the reason by its control protocol (QMP).

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::Deserialize;

/// Reasons of errors for lack of room. The event has its member `nospace` only if such an error stops the machine.
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// Prefix of the emulator's names of disks, before a number from 0.
pub const NAME: &str = "disk";

/// A connection to an emulator, which reports errors of its disks.
#[derive(Debug)]
pub struct DiskErrors {
    own: UnixStream,
    /// The emulator's end, which child processes inherit.
    emulator: UnixStream,
    /// The disks' files, by number.
    files: Vec<PathBuf>,
}

impl DiskErrors {
    /// Makes the connection for an emulator with these disks, before it is started.
    ///
    /// # Errors
    /// The system has no socket left.
    pub fn new(files: Vec<PathBuf>) -> Result<Self> {
        let (own, emulator) = UnixStream::pair().context("errors of disks have no socket")?;
        fcntl_setfd(&emulator, FdFlags::empty()).map_err(io::Error::from)?;
        Ok(Self { own, emulator, files })
    }

    /// Returns the emulator's arguments for the connection.
    pub fn arguments(&self) -> [String; 4] {
        let socket = format!("socket,id=errors,fd={}", self.emulator.as_raw_fd());
        ["-chardev".into(), socket, "-mon".into(), "chardev=errors,mode=control".into()]
    }

    /// Starts a thread that calls `report` with lines for the user until `report` returns false. Call it after the emulator's start.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn watch(self, mut report: impl FnMut(String) -> bool + Send + 'static) -> Result<()> {
        let Self { mut own, emulator, files } = self;
        // Only the emulator keeps its end, so that the connection ends with it.
        drop(emulator);
        let follow = move || -> io::Result<()> {
            own.write_all(b"{\"execute\": \"qmp_capabilities\"}\n")?;
            let mut counts = BTreeMap::new();
            for line in BufReader::new(own).lines() {
                // Skip replies and other events.
                let Ok(Message { data: Some(error), .. }) = serde_json::from_str(&line?) else { continue };
                let count = counts.entry((error.device.clone(), error.operation.clone(), error.reason.clone())).or_insert(0u64);
                *count += 1;
                // Report powers of two only: a guest can write to a full disk in a loop.
                if count.is_power_of_two() && !report(error.describe(*count, &files)) {
                    break;
                }
            }
            Ok(())
        };
        // The thread ends with the connection.
        thread::Builder::new().name("disks".into()).spawn(move || drop(follow())).context("errors of disks have no thread")?;
        Ok(())
    }
}

/// A message of the emulator: an event BLOCK_IO_ERROR, or another one.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "event")]
    _event: Name,
    data: Option<Failure>,
}

#[derive(Deserialize)]
enum Name {
    #[serde(rename = "BLOCK_IO_ERROR")]
    BlockIoError,
}

/// An error of a disk (QEMU QMP Reference Manual, BLOCK_IO_ERROR).
#[derive(Deserialize)]
struct Failure {
    device: String,
    operation: String,
    action: String,
    #[serde(default)]
    reason: String,
}

impl Failure {
    /// Returns a line for the user about the error, the `count`th of its kind.
    fn describe(&self, count: u64, files: &[PathBuf]) -> String {
        let number = self.device.strip_prefix(NAME).and_then(|number| number.parse::<usize>().ok());
        let file = number.and_then(|number| files.get(number));
        let name = file.map_or_else(|| self.device.clone(), |file| file.display().to_string());
        let Self { operation, reason, .. } = self;
        let times = if count == 1 { String::new() } else { format!(", {count} times by now") };
        let effect = match &self.action[..] {
            "stop" => "the emulator has stopped the machine",
            "ignore" => "the guest got no error",
            _ => "the guest got an I/O error",
        };
        let remedy = if FULL.contains(&&reason[..]) {
            let directory = file.and_then(|file| file.parent()).filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.map_or_else(|| ".".into(), |parent| parent.display().to_string());
            format!("make room in its file system (df {directory}), then restart the guest")
        } else {
            "see the kernel's log (dmesg), and check the disk that the file is on".to_owned()
        };
        format!("stile: disk: {name}: a {operation} failed ({reason}{times}), and {effect}: {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn error(device: &str, operation: &str, reason: &str) -> String {
        format!(
            "{{\"timestamp\": {{\"seconds\": 1, \"microseconds\": 2}}, \"event\": \"BLOCK_IO_ERROR\", \"data\": {{\"device\": \"{device}\", \
             \"node-name\": \"#block1\", \"reason\": \"{reason}\", \"operation\": \"{operation}\", \"action\": \"report\"}}}}"
        )
    }

    #[test]
    fn errors_are_reported_ever_more_rarely() {
        let errors = DiskErrors::new(vec!["/var/a,b.qcow2".into(), "c.img".into()]).unwrap();
        let mut emulator = errors.emulator.try_clone().unwrap();
        let (send, reports) = sync_channel(16);
        errors.watch(move |line| send.send(line).is_ok()).unwrap();
        let full = error("disk0", "write", "No space left on device");
        let bad = error("disk1", "read", "Input/output error");
        let others = ["{\"QMP\": {\"version\": {}}}", "{\"return\": {}}", "{\"event\": \"STOP\", \"data\": {}}", "no JSON"];
        for line in others.into_iter().chain([&full[..], &full, &full, &bad, "{\"event\": \"BLOCK_IO_ERROR\"}", &full]) {
            writeln!(emulator, "{line}").unwrap();
        }
        let mut first = String::new();
        BufReader::new(emulator.try_clone().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "{\"execute\": \"qmp_capabilities\"}\n");
        drop(emulator);
        let lines: Vec<String> = reports.iter().collect();
        let room = "and the guest got an I/O error: make room in its file system (df /var), then restart the guest";
        let begin = "stile: disk: /var/a,b.qcow2: a write failed";
        let expected = [
            format!("{begin} (No space left on device), {room}"),
            format!("{begin} (No space left on device, 2 times by now), {room}"),
            "stile: disk: c.img: a read failed (Input/output error), and the guest got an I/O error: see the kernel's log (dmesg), and check the \
             disk that the file is on"
                .to_owned(),
            format!("{begin} (No space left on device, 4 times by now), {room}"),
        ];
        assert_eq!(lines, expected);
    }
}
