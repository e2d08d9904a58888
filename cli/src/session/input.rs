//! Threads that wait for input, and their reports.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};

use crate::control::server::Message;
use crate::emulator::Pipes;

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Bytes of the serial line.
    Line(Vec<u8>),
    /// The serial line is closed: the emulator is ending.
    LineEnd,
    /// The emulator's own words.
    Errors(Vec<u8>),
    /// Bytes of standard input.
    Keyboard(Vec<u8>),
    /// Standard input is closed.
    KeyboardEnd,
    /// A signal.
    Signal(i32),
    /// A client of the control socket.
    Client(Message),
}

/// Capacity of the input queue. A full queue blocks the emulator, so that memory stays bounded.
const WAITING: usize = 64;

/// The queue of the threads' reports, and the sender to the serial line.
pub struct Inputs {
    /// The events, in order.
    pub inputs: Receiver<Input>,
    /// Bytes for the serial line.
    pub line: Sender<Vec<u8>>,
    signals: Handle,
    reporter: SyncSender<Input>,
}

/// Catches signals from here on, so that temporary files are removed and the terminal is restored. They stay
/// pending until the emulator has started.
///
/// # Errors
/// Signals can't be caught.
pub fn catch_signals() -> Result<Signals> {
    Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGWINCH]).context("catching signals")
}

impl Inputs {
    /// Starts the threads. `keyboard`: whether to read standard input.
    pub fn start(mut signals: Signals, pipes: Pipes, keyboard: bool) -> Self {
        let (send, inputs) = sync_channel(WAITING);
        let handle = signals.handle();

        let (reporter, report) = (send.clone(), send.clone());
        thread::spawn(move || {
            for signal in &mut signals {
                if report.send(Input::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        let report = send.clone();
        thread::spawn(move || {
            pump(pipes.output, &report, Input::Line);
            let _ = report.send(Input::LineEnd);
        });
        let report = send.clone();
        thread::spawn(move || pump(pipes.errors, &report, Input::Errors));
        if keyboard {
            thread::spawn(move || {
                pump(io::stdin(), &send, Input::Keyboard);
                let _ = send.send(Input::KeyboardEnd);
            });
        }
        let (line, bytes) = channel::<Vec<u8>>();
        let mut to = pipes.input;
        // A separate thread: a guest that doesn't read its console must not block the display of output.
        thread::spawn(move || {
            for bytes in bytes {
                if to.write_all(&bytes).and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
        });
        Self { inputs, line, signals: handle, reporter }
    }

    /// Reports from another thread.
    pub fn reporter(&self) -> SyncSender<Input> {
        self.reporter.clone()
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        self.signals.close();
    }
}

fn pump(mut from: impl Read, to: &SyncSender<Input>, input: fn(Vec<u8>) -> Input) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if to.send(input(buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_stays_pending_while_the_emulator_is_started() {
        let signals = catch_signals().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        // The line is never closed, so that nothing else is reported.
        let (line, _writer) = io::pipe().unwrap();
        let pipes = Pipes { input: Box::new(io::sink()), output: Box::new(line), errors: Box::new(io::empty()) };
        let inputs = Inputs::start(signals, pipes, false);
        assert!(matches!(inputs.inputs.recv(), Ok(Input::Signal(SIGHUP))));
    }
}
