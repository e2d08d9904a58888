//! The line's decoder.

use crate::{Channel, Command, DLE, Event, FrameError, MAX_FRAME, frame};
use heapless::Vec;

/// An item that a byte of the line completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'d> {
    /// A byte of a channel.
    Byte(Channel, u8),
    /// A whole frame with a valid version and checksum: see [`Item::event`] and [`Item::command`].
    Frame(&'d [u8]),
    /// A lost frame.
    Bad(FrameError),
}

impl Item<'_> {
    /// The message to the operator that a frame carries; `None` for a byte.
    pub fn event(&self) -> Option<Result<Event, FrameError>> {
        match self {
            Item::Frame(message) => Some(frame::unpack(message)),
            Item::Bad(error) => Some(Err(*error)),
            Item::Byte(..) => None,
        }
    }

    /// The message to Stile that a frame carries; `None` for a byte.
    pub fn command(&self) -> Option<Result<Command, FrameError>> {
        match self {
            Item::Frame(message) => Some(frame::unpack(message)),
            Item::Bad(error) => Some(Err(*error)),
            Item::Byte(..) => None,
        }
    }
}

/// The decoder of a line, fed byte by byte.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    channel: Channel,
    /// The last byte was a [`DLE`]; the next byte determines its meaning.
    escape: bool,
    state: State,
    frame: Vec<u8, MAX_FRAME>,
}

/// The decoder's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Bytes belong to a channel.
    #[default]
    Text,
    /// Bytes belong to a frame.
    Frame,
    /// Bytes of an overlong frame are dropped up to its end.
    Overlong,
}

impl Decoder {
    /// A decoder at the start of a line.
    pub const fn new() -> Self {
        Self { channel: Channel::LOG, escape: false, state: State::Text, frame: Vec::new() }
    }

    /// Takes the next byte of the line.
    pub fn push(&mut self, byte: u8) -> Option<Item<'_>> {
        if !core::mem::take(&mut self.escape) {
            if byte == DLE {
                self.escape = true;
                return None;
            }
            return self.literal(byte);
        }
        match byte {
            DLE => self.literal(DLE),
            b'<' => {
                let broken = self.state != State::Text;
                self.state = State::Frame;
                self.frame.clear();
                broken.then_some(Item::Bad(FrameError::Broken))
            }
            b'>' => self.end_of_frame(),
            _ => {
                // A selection, or noise. Inside a frame, both mean that the frame's end was lost; text
                // follows.
                if let Some(channel) = Channel::of_select_byte(byte) {
                    self.channel = channel;
                }
                self.abandon()
            }
        }
    }

    /// The selected channel.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    fn literal(&mut self, byte: u8) -> Option<Item<'_>> {
        match self.state {
            State::Text => return Some(Item::Byte(self.channel, byte)),
            State::Frame => {
                if self.frame.push(byte).is_err() {
                    self.state = State::Overlong;
                }
            }
            State::Overlong => {}
        }
        None
    }

    fn end_of_frame(&mut self) -> Option<Item<'_>> {
        match core::mem::take(&mut self.state) {
            State::Text => Some(Item::Bad(FrameError::Broken)),
            State::Overlong => Some(Item::Bad(FrameError::TooLong)),
            State::Frame => Some(match frame::check(&self.frame) {
                Ok(message) => Item::Frame(message),
                Err(error) => Item::Bad(error),
            }),
        }
    }

    fn abandon(&mut self) -> Option<Item<'_>> {
        let state = core::mem::take(&mut self.state);
        (state != State::Text).then_some(Item::Bad(FrameError::Broken))
    }
}
