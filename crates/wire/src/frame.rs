//! Frames: a version, one message, and a checksum.

use core::fmt;
use crc::{CRC_16_IBM_SDLC, Crc};
use serde::{Serialize, de::DeserializeOwned};

/// The longest frame in bytes: version, message and checksum, before `DLE`s are doubled.
pub const MAX_FRAME: usize = 512;

/// The version byte of every frame. From the first release on it changes with existing messages, but not for new
/// messages at the end of an enumeration.
pub const PROTOCOL_VERSION: u8 = 4;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_IBM_SDLC);
const CRC_LEN: usize = 2;

/// The reason why a frame has no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It is longer than [`MAX_FRAME`].
    TooLong,
    /// Bytes were lost, or the sender stopped.
    Broken,
    /// Wrong checksum: bytes were lost or changed.
    Checksum,
    /// It has this other protocol version.
    Version(u8),
    /// It has a message that the receiver does not know.
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

/// Encodes a message into `buffer` as a frame: version, message, checksum. `None` if it does not fit,
/// which no message of this crate can cause.
pub(crate) fn pack<'b, T: Serialize>(message: &T, buffer: &'b mut [u8; MAX_FRAME]) -> Option<&'b [u8]> {
    let (version, body) = buffer.split_first_mut()?;
    *version = PROTOCOL_VERSION;
    let room = body.len() - CRC_LEN;
    let len = 1 + postcard::to_slice(message, body.get_mut(..room)?).ok()?.len();
    let crc = CRC.checksum(buffer.get(..len)?);
    buffer.get_mut(len..len + CRC_LEN)?.copy_from_slice(&crc.to_le_bytes());
    buffer.get(..len + CRC_LEN)
}

/// Checks a frame, and returns the bytes between version and checksum.
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

/// Decodes the message in the result of [`check`]. Trailing bytes are reserved for later versions.
pub(crate) fn unpack<T: DeserializeOwned>(message: &[u8]) -> Result<T, FrameError> {
    postcard::take_from_bytes(message).map(|(message, _)| message).map_err(|_| FrameError::Unknown)
}
