//! Encoding of records: postcard's format, without trailing bytes.

use serde::{Deserialize, Serialize};

/// Encodes a record into `buffer` and returns its length; `None` if it does not fit.
pub fn encode(record: &impl Serialize, buffer: &mut [u8]) -> Option<usize> {
    postcard::to_slice(record, buffer).ok().map(|used| used.len())
}

/// Decodes a record that takes all of `bytes`.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(record)
}
