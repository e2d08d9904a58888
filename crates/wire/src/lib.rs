//! The serial channel: every console and the operator's messages on one line.
//!
//! One serial line carries Stile's log, the console of every virtual machine, and messages between
//! Stile and the operator's command. Text is sent unchanged, so a plain terminal shows readable
//! output; only [`DLE`] is special:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | `DLE` `DLE` | the byte `DLE` |
//! | `DLE` `A`+*n* | the bytes that follow are of channel *n* |
//! | `DLE` `<` | a frame begins |
//! | `DLE` `>` | the frame ends |
//!
//! A frame carries one message on the operator's channel: a version byte, the message in postcard's
//! format, and a CRC-16, with `DLE` doubled as everywhere. Both directions use the same format.
//! [`Encoder`] and [`Decoder`] do not allocate. The decoder never panics, and recovers at the next
//! whole frame after any garbage.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod account;
mod answered;
mod bytes;
mod channel;
mod decode;
mod encode;
mod frame;
mod message;
mod records;
mod transmit;
mod vm_state;

#[cfg(test)]
mod tests;

pub use account::{CpuTime, Decoded, LedgerRow, LedgerTotal, Row, Sample};
pub use answered::Answered;
pub use bytes::{Bytes, Piece, Text};
pub use channel::{Channel, MAX_CHANNELS};
pub use decode::{Decoder, Item};
pub use encode::{Encoder, Sink};
pub use frame::{FrameError, MAX_FRAME, PROTOCOL_VERSION};
pub use message::{Action, Answer, Command, Event, Level, Scope, Version, Wait};
pub use records::Records;
pub use transmit::{Full, MAX_LINE, RateLimit, Transmitter};
pub use vm_state::{Crash, CrashReason, VmState};

/// Data link escape: the only byte with a special meaning.
pub const DLE: u8 = 0x10;
