//! The serial channel: every console and the operator's messages on one line.
//!
//! One serial line carries Stile's own log, the console of every virtual machine and the messages
//! between Stile and the operator's command. Text goes as it is, so a terminal on the line shows
//! something sensible; only [`DLE`] is special:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | `DLE` `DLE` | the byte `DLE` |
//! | `DLE` `A`+*n* | the bytes that follow are of channel *n* |
//! | `DLE` `<` | a frame begins |
//! | `DLE` `>` | the frame ends |
//!
//! A frame carries one message on the operator's channel: a version byte, the message in
//! postcard's format and a CRC-16, in which `DLE` is doubled as anywhere else. Both directions work
//! alike. [`Encoder`] writes, [`Decoder`] reads; neither allocates, and whatever bytes arrive, the
//! decoder never panics and understands the next whole frame.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod channel;
mod decode;
mod encode;
mod frame;
mod message;
mod transmit;

#[cfg(test)]
mod tests;

pub use channel::{Channel, MAX_CHANNELS};
pub use decode::{Decoder, Item};
pub use encode::{Encoder, Sink};
pub use frame::{FrameError, MAX_FRAME, PROTOCOL_VERSION};
pub use message::{Command, CpuTime, Crash, CrashReason, Decoded, Event, LedgerRow, LedgerTotal, Level, Row, Version, VmState};
pub use transmit::{Full, MAX_LINE, RateLimit, Transmitter};

/// Data link escape: the one byte of the line that is not text.
pub const DLE: u8 = 0x10;
