//! Runs of the emulator that only print.

use std::io::{Read, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::probe;
use crate::emulator::{Board, Emulator};
use crate::exit;

/// How long a run may take: emulators on busy machines are slow.
const TIMEOUT: Duration = Duration::from_secs(900);

/// How long the emulator may take to end after its line is closed.
const GRACE: Duration = Duration::from_secs(10);

/// Boots `image` on `board` and returns everything that came over the serial line until the machine ended.
///
/// # Errors
/// The emulator fails, or takes too long.
pub fn run(board: &Board, image: &[u8]) -> Result<Vec<u8>> {
    run_until(board, image, |_| false)
}

/// The same for a machine that need not end: it is ended once `is_over` says so of everything that came.
///
/// # Errors
/// As of [`run`].
pub fn run_until(board: &Board, image: &[u8], is_over: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut file = tempfile::Builder::new().prefix("stile-").suffix(".img").tempfile().context("making the image's file")?;
    file.write_all(image).context("writing the image")?;
    let (mut emulator, mut pipes) = Emulator::start(board, file.path())?;
    let errors = thread::spawn(move || {
        let mut text = String::new();
        let _ = pipes.errors.read_to_string(&mut text);
        text
    });
    let (send, bytes) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = pipes.output.read(&mut buffer) {
            if send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let until = Instant::now() + TIMEOUT;
    let mut output = Vec::new();
    loop {
        match bytes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(bytes) => {
                output.extend(bytes);
                if is_over(&output) {
                    emulator.kill();
                    return Ok(output);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let end = probe::end(&output);
                return Err(exit::emulator(format!("the run did not end within {} s; the end of its output:\n{end}", TIMEOUT.as_secs())));
            }
        }
    }
    match emulator.wait(GRACE) {
        Some(status) if status.success() => Ok(output),
        Some(status) => {
            let errors = errors.join().unwrap_or_default();
            Err(exit::emulator(format!("the emulator failed ({status}): {}", errors.trim())))
        }
        None => Err(exit::emulator("the emulator closed its serial line but does not end")),
    }
}
