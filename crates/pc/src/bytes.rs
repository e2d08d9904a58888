//! Writing little-endian numbers.

/// Puts `bytes` at `offset`. What would lie outside is left out: offsets are constants of layouts.
pub(crate) fn put(to: &mut [u8], offset: usize, bytes: &[u8]) {
    if let Some(slot) = to.get_mut(offset..).and_then(|to| to.get_mut(..bytes.len())) {
        slot.copy_from_slice(bytes);
    }
}

/// Four bytes at `offset`; 0 outside.
pub(crate) fn get_u32(from: &[u8], offset: usize) -> u32 {
    from.get(offset..).and_then(|bytes| bytes.first_chunk()).map_or(0, |&bytes| u32::from_le_bytes(bytes))
}
