//! Input of a session: a thread for each source queues what it reads.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SendError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::{Handle, Signals};

use crate::control::server::Message;
use crate::emulator::Pipes;

/// An event of an input thread or of a client.
#[derive(Debug)]
pub enum Input {
    /// Bytes of the serial line.
    Line(Vec<u8>),
    /// The serial line is closed: the emulator is ending.
    LineEnd,
    /// Bytes of the emulator's standard error, or a line about its disks.
    Errors(Vec<u8>),
    /// A source of [`Input::Errors`] has ended.
    ErrorsEnd,
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
pub const WAITING: usize = 64;

/// Maximum number of bytes on their way to the guests: above it, piped standard input is not read.
const OUTSTANDING: usize = 64 * 1024;

/// Standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyboard {
    /// Not read.
    Ignored,
    /// A terminal: always read, because some keys are for this program.
    Typed,
    /// A pipe or file: read as fast as the guests take it.
    Piped,
}

/// The bytes on their way to the guests.
#[derive(Debug, Default)]
struct Outstanding {
    counts: Mutex<Counts>,
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Bytes of standard input in the queue of events.
    queued: usize,
    /// Bytes of standard input that wait until a guest is ready.
    waiting: usize,
    /// Bytes that wait for the serial line.
    line: usize,
}

impl Counts {
    const fn is_full(&self) -> bool {
        self.queued + self.waiting + self.line > OUTSTANDING
    }
}

impl Outstanding {
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let was_full = counts.is_full();
        change(&mut counts);
        if was_full && !counts.is_full() {
            self.fewer.notify_all();
        }
    }

    /// Waits until at most [`OUTSTANDING`] bytes are on their way.
    fn wait(&self) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.fewer.wait_while(counts, |counts| counts.is_full()).unwrap_or_else(PoisonError::into_inner));
    }
}

/// The sender to the serial line.
pub struct LineSender {
    bytes: Sender<Vec<u8>>,
    outstanding: Arc<Outstanding>,
}

impl LineSender {
    /// Queues bytes for the serial line, without waiting.
    ///
    /// # Errors
    /// The line is closed.
    pub fn send(&self, bytes: Vec<u8>) -> Result<(), SendError<Vec<u8>>> {
        self.outstanding.change(|counts| counts.line += bytes.len());
        self.bytes.send(bytes)
    }
}

/// The queue of the threads' events, and the sender to the serial line.
pub struct Inputs {
    /// The events, in order.
    pub inputs: Receiver<Input>,
    /// Bytes for the serial line.
    pub line: LineSender,
    outstanding: Arc<Outstanding>,
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
    /// Starts the threads.
    pub fn start(mut signals: Signals, pipes: Pipes, keyboard: Keyboard) -> Self {
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
            pump(pipes.output, &report, Input::Line, None);
            let _ = report.send(Input::LineEnd);
        });
        let report = send.clone();
        thread::spawn(move || {
            pump(pipes.errors, &report, Input::Errors, None);
            let _ = report.send(Input::ErrorsEnd);
        });
        let outstanding = Arc::<Outstanding>::default();
        if keyboard != Keyboard::Ignored {
            let limit = (keyboard == Keyboard::Piped).then(|| Arc::clone(&outstanding));
            thread::spawn(move || {
                pump(io::stdin(), &send, Input::Keyboard, limit.as_deref());
                let _ = send.send(Input::KeyboardEnd);
            });
        }
        let (line, bytes) = channel::<Vec<u8>>();
        let written = Arc::clone(&outstanding);
        let mut to = pipes.input;
        // A separate thread: a guest that doesn't read its console must not block the display of output.
        thread::spawn(move || {
            for bytes in bytes {
                if to.write_all(&bytes).and_then(|()| to.flush()).is_err() {
                    break;
                }
                written.change(|counts| counts.line -= bytes.len());
            }
            // Nothing more is written: nobody must wait for it.
            written.change(|counts| counts.line = 0);
        });
        let line = LineSender { bytes: line, outstanding: Arc::clone(&outstanding) };
        Self { inputs, line, outstanding, signals: handle, reporter }
    }

    /// Records that `count` bytes of [`Input::Keyboard`] were taken from the queue, and that `waiting` bytes of it wait until a
    /// guest is ready.
    pub fn took(&self, count: usize, waiting: usize) {
        self.outstanding.change(|counts| {
            // Typed input is not counted.
            counts.queued = counts.queued.saturating_sub(count);
            counts.waiting = waiting;
        });
    }

    /// Returns a sender with which another thread can queue events.
    pub fn reporter(&self) -> SyncSender<Input> {
        self.reporter.clone()
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        self.signals.close();
    }
}

/// Queues what it reads, until the end of `from` or an error. With a `limit`, it pauses while too many bytes are outstanding.
fn pump(mut from: impl Read, to: &SyncSender<Input>, input: fn(Vec<u8>) -> Input, limit: Option<&Outstanding>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Some(limit) = limit {
            limit.wait();
        }
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if let Some(limit) = limit {
                    limit.change(|counts| counts.queued += count);
                }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_signal_stays_pending_while_the_emulator_is_started() {
        let signals = catch_signals().unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        // Neither stream is closed, so that nothing else is reported.
        let ((line, _line), (errors, _errors)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let pipes = Pipes { input: Box::new(io::sink()), output: Box::new(line), errors: Box::new(errors) };
        let inputs = Inputs::start(signals, pipes, Keyboard::Ignored);
        assert!(matches!(inputs.inputs.recv(), Ok(Input::Signal(SIGHUP))));
    }

    /// Counts the bytes that are queued until none comes for 200 ms, or until there are `most`.
    fn queued(inputs: &Receiver<Input>, most: usize) -> usize {
        let mut count = 0;
        while count < most
            && let Ok(Input::Keyboard(bytes)) = inputs.recv_timeout(Duration::from_millis(200))
        {
            count += bytes.len();
        }
        count
    }

    #[test]
    fn piped_input_is_read_as_fast_as_guests_take_it() {
        let (send, inputs) = sync_channel(WAITING);
        let outstanding = Arc::<Outstanding>::default();
        let limit = Arc::clone(&outstanding);
        thread::spawn(move || pump(io::repeat(b'y'), &send, Input::Keyboard, Some(&limit)));
        let Ok(Input::Keyboard(first)) = inputs.recv() else { panic!("nothing is read") };
        let most = 10 * OUTSTANDING;
        let mut read = first.len();
        while read <= OUTSTANDING {
            let Ok(Input::Keyboard(next)) = inputs.recv() else { panic!("nothing is read") };
            read += next.len();
        }
        read += queued(&inputs, most);
        assert!(read < most, "{read} bytes");
        // All of them wait until a guest is ready, and then for the serial line.
        outstanding.change(|counts| (counts.queued, counts.waiting) = (0, read));
        assert_eq!(queued(&inputs, 1), 0);
        outstanding.change(|counts| (counts.waiting, counts.line) = (0, read));
        assert_eq!(queued(&inputs, 1), 0);
        outstanding.change(|counts| counts.line = 0);
        let Ok(Input::Keyboard(next)) = inputs.recv() else { panic!("nothing is read") };
        read = next.len() + queued(&inputs, most);
        assert!(read < most, "{read} bytes");
    }
}
