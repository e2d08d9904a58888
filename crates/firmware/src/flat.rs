//! Memory of tests: bytes from address 0 on.

use std::vec::Vec;

use crate::Memory;

/// The bytes.
pub struct Flat(pub Vec<u8>);

impl Memory for Flat {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        self.0.get(usize::try_from(address).ok()?..)?.get(..len)
    }
}
