//! Frames: one message each, with a version before it and a checksum behind it.

use core::fmt;
use crc::{CRC_16_IBM_SDLC, Crc};
use serde::{Serialize, de::DeserializeOwned};

/// The longest frame in bytes: version, message and checksum, before `DLE`s are doubled.
pub const MAX_FRAME: usize = 512;

/// The version byte of every frame. New messages at the end of an enumeration don't change it;
/// a change to a message that exists does.
pub const PROTOCOL_VERSION: u8 = 1;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_IBM_SDLC);
const CRC_LEN: usize = 2;

/// Why a frame carries no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It is longer than [`MAX_FRAME`].
    TooLong,
    /// Bytes were lost, or the sender broke off.
    Broken,
    /// The checksum is another: bytes were lost or changed.
    Checksum,
    /// It is of another version of the protocol, this one.
    Version(u8),
    /// It carries a message that this side does not know.
    Unknown,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong => write!(f, "frame longer than {MAX_FRAME} bytes"),
            FrameError::Broken => f.write_str("frame broken off"),
            FrameError::Checksum => f.write_str("frame with a wrong checksum"),
            FrameError::Version(version) => {
                write!(f, "frame of protocol version {version}, expected {PROTOCOL_VERSION}")
            }
            FrameError::Unknown => f.write_str("unknown message"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Puts a message into `buffer` as a frame's bytes: version, message, checksum. `None` if it doesn't
/// fit, which no message of this crate can cause.
pub(crate) fn pack<'b, T: Serialize>(message: &T, buffer: &'b mut [u8; MAX_FRAME]) -> Option<&'b [u8]> {
    let (version, body) = buffer.split_first_mut()?;
    *version = PROTOCOL_VERSION;
    let room = body.len() - CRC_LEN;
    let len = 1 + postcard::to_slice(message, body.get_mut(..room)?).ok()?.len();
    let crc = CRC.checksum(buffer.get(..len)?);
    buffer.get_mut(len..len + CRC_LEN)?.copy_from_slice(&crc.to_le_bytes());
    buffer.get(..len + CRC_LEN)
}

/// What stands in a frame's bytes between version and checksum.
pub(crate) fn check(frame: &[u8]) -> Result<&[u8], FrameError> {
    let (body, crc) = frame.split_last_chunk::<CRC_LEN>().ok_or(FrameError::Broken)?;
    if CRC.checksum(body) != u16::from_le_bytes(*crc) {
        return Err(FrameError::Checksum);
    }
    match body.split_first() {
        Some((&PROTOCOL_VERSION, message)) => Ok(message),
        Some((&version, _)) => Err(FrameError::Version(version)),
        None => Err(FrameError::Broken),
    }
}

/// The message in what [`check`] returned. Bytes behind it are for later versions to use.
pub(crate) fn unpack<T: DeserializeOwned>(message: &[u8]) -> Result<T, FrameError> {
    postcard::take_from_bytes(message).map(|(message, _)| message).map_err(|_| FrameError::Unknown)
}
