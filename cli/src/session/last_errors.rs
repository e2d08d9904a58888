//! Errors of the emulator that arrive after the end of its serial line.

use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

use signal_hook::consts::{SIGQUIT, SIGWINCH};

use super::input::{Input, WAITING};

/// A source of [`Input::Errors`]. When it is dropped, it reports its end, behind all its lines.
#[derive(Debug)]
pub struct ErrorSource(pub SyncSender<Input>);

impl ErrorSource {
    /// Queues a line. Returns whether anyone takes it.
    pub fn report(&self, line: &str) -> bool {
        self.0.send(Input::Errors(format!("{line}\n").into_bytes())).is_ok()
    }
}

impl Drop for ErrorSource {
    fn drop(&mut self) {
        // Fails only if the session has ended.
        let _ = self.0.send(Input::ErrorsEnd);
    }
}

/// The wait for the last errors. It ends with their sources, at a time, or by a signal that ends a run: a process that the emulator left
/// behind may keep a source open.
#[derive(Debug)]
pub struct LastErrors {
    /// Number of sources that have not ended.
    pub open: usize,
    /// End of the wait. After it, only queued events are taken.
    pub until: Instant,
    /// Number of events taken after it: other threads may go on to queue some.
    late: usize,
}

impl LastErrors {
    pub const fn new(open: usize, until: Instant) -> Self {
        Self { open, until, late: 0 }
    }

    /// Waits for the next errors. All other events are dropped.
    pub fn next(&mut self, inputs: &Receiver<Input>) -> Option<Vec<u8>> {
        while self.open > 0 && self.late < WAITING {
            let wait = self.until.saturating_duration_since(Instant::now());
            self.late += usize::from(wait.is_zero());
            match inputs.recv_timeout(wait).ok()? {
                Input::Errors(bytes) => return Some(bytes),
                Input::ErrorsEnd => self.open -= 1,
                Input::Signal(SIGQUIT | SIGWINCH) => {}
                Input::Signal(_) => self.until = Instant::now(),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use signal_hook::consts::{SIGINT, SIGTERM};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn all(last: &mut LastErrors, inputs: &Receiver<Input>) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| last.next(inputs)).collect()
    }

    #[test]
    fn each_source_is_taken_to_its_end() {
        let (send, inputs) = sync_channel(WAITING);
        let disks = ErrorSource(send.clone());
        // Standard error ends before the disks' connection.
        send.send(Input::Errors(b"emulator\n".to_vec())).unwrap();
        send.send(Input::ErrorsEnd).unwrap();
        let late = std::thread::spawn(move || assert!(disks.report("disk full") && disks.report("twice")));
        let mut last = LastErrors::new(2, Instant::now() + LONG);
        assert_eq!(all(&mut last, &inputs), [&b"emulator\n"[..], b"disk full\n", b"twice\n"]);
        assert_eq!(last.open, 0);
        late.join().unwrap();
    }

    #[test]
    fn a_signal_ends_the_wait_and_keeps_queued_lines() {
        for signal in [SIGINT, SIGTERM] {
            // The channel stays open, as if a process kept the emulator's standard error.
            let (send, inputs) = sync_channel(WAITING);
            for input in [Input::Signal(SIGWINCH), Input::Signal(signal), Input::KeyboardEnd, Input::Errors(b"late".to_vec())] {
                send.send(input).unwrap();
            }
            let mut last = LastErrors::new(1, Instant::now() + LONG);
            assert_eq!(all(&mut last, &inputs), [b"late"]);
            assert!(last.until <= Instant::now());
        }
    }

    #[test]
    fn other_events_do_not_prolong_the_wait() {
        let (send, inputs) = sync_channel(WAITING);
        let flood = std::thread::spawn(move || while send.send(Input::Keyboard(vec![0])).is_ok() {});
        assert_eq!(LastErrors::new(1, Instant::now()).next(&inputs), None);
        drop(inputs);
        flood.join().unwrap();
    }
}
