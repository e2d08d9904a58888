//! Little-endian words of a file.

/// The word at a place of a file, if the file is long enough.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// The double word at a place of a file, if the file is long enough.
pub fn double_word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
