//! The line's encoder.

use crate::{Channel, Command, DLE, Event, MAX_FRAME, frame};
use serde::Serialize;

/// The destination of encoded bytes: a serial port or a buffer.
pub trait Sink {
    /// Takes one byte of the line.
    fn byte(&mut self, byte: u8);
}

impl<F: FnMut(u8)> Sink for F {
    fn byte(&mut self, byte: u8) {
        self(byte);
    }
}

/// The encoder of a line, which tracks the selected channel.
///
/// A line has one encoder at a time, behind the line's lock.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    /// `None` before the first byte, and if the receiver may have missed the selection.
    selected: Option<Channel>,
}

impl Encoder {
    /// An encoder at the start of a line.
    pub const fn new() -> Self {
        Self { selected: None }
    }

    /// Forgets the selected channel, so that the next write selects one again: after the receiver may have
    /// lost bytes, or another writer (a panic) may have intervened.
    pub fn resync(&mut self) {
        self.selected = None;
    }

    /// Writes one byte of a channel.
    #[inline]
    pub fn byte(&mut self, channel: Channel, byte: u8, sink: &mut impl Sink) {
        self.select(channel, sink);
        escaped(byte, sink);
    }

    /// Writes bytes of a channel.
    pub fn bytes(&mut self, channel: Channel, bytes: &[u8], sink: &mut impl Sink) {
        for &byte in bytes {
            self.byte(channel, byte, sink);
        }
    }

    /// Writes a message to the operator.
    pub fn event(&mut self, event: &Event, sink: &mut impl Sink) {
        self.message(event, sink);
    }

    /// Writes a message to Stile.
    pub fn command(&mut self, command: &Command, sink: &mut impl Sink) {
        self.message(command, sink);
    }

    fn message<T: Serialize>(&mut self, message: &T, sink: &mut impl Sink) {
        let mut buffer = [0; MAX_FRAME];
        let Some(frame) = frame::pack(message, &mut buffer) else {
            debug_assert!(false, "a message does not fit into a frame");
            return;
        };
        self.begin_frame(sink);
        for &byte in frame {
            self.frame_byte(byte, sink);
        }
        self.end_frame(sink);
    }

    /// Begins a frame, which no byte of another channel may interrupt.
    pub(crate) fn begin_frame(&mut self, sink: &mut impl Sink) {
        self.select(Channel::OPERATOR, sink);
        sink.byte(DLE);
        sink.byte(b'<');
    }

    /// Writes a byte of a frame.
    pub(crate) fn frame_byte(&mut self, byte: u8, sink: &mut impl Sink) {
        escaped(byte, sink);
    }

    /// Ends a frame.
    pub(crate) fn end_frame(&mut self, sink: &mut impl Sink) {
        sink.byte(DLE);
        sink.byte(b'>');
    }

    #[inline]
    fn select(&mut self, channel: Channel, sink: &mut impl Sink) {
        if self.selected != Some(channel) {
            self.selected = Some(channel);
            sink.byte(DLE);
            sink.byte(channel.select_byte());
        }
    }
}

/// Writes a literal byte.
#[inline]
fn escaped(byte: u8, sink: &mut impl Sink) {
    if byte == DLE {
        sink.byte(DLE);
    }
    sink.byte(byte);
}
