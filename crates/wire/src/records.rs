//! Variable-length bytes in a message: padding would take a slow line's time.

use core::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Records of a trace: as much as fits into a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Records {
    length: u16,
    bytes: [u8; Records::MOST],
}

impl Records {
    /// The most bytes.
    pub const MOST: usize = 448;

    /// The first [`MOST`](Self::MOST) of these.
    pub fn new(bytes: &[u8]) -> Self {
        let bytes = bytes.get(..Self::MOST).unwrap_or(bytes);
        let mut records = Self { length: bytes.len() as u16, bytes: [0; Self::MOST] };
        records.bytes[..bytes.len()].copy_from_slice(bytes);
        records
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

impl Serialize for Records {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.bytes())
    }
}

impl<'de> Deserialize<'de> for Records {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Records;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {} bytes", Records::MOST)
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Records, E> {
                if bytes.len() > Records::MOST {
                    return Err(E::invalid_length(bytes.len(), &self));
                }
                Ok(Records::new(bytes))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}
