//! Guest memory for tests: bytes from address 0 on.

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::{GuestMemory, PAGE};

/// Simulated guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory(RefCell<Vec<u8>>);

impl Memory {
    /// Creates `size` zeroed bytes; `size` is a multiple of 4 KiB.
    pub fn new(size: usize) -> Self {
        Self(RefCell::new(vec![0; size]))
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// The range is not in the memory.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.0.borrow_mut()[address as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        assert!(address % PAGE + N as u64 <= PAGE, "an access lies in one page");
        let start = usize::try_from(address).ok()?;
        self.0.borrow().get(start..start.checked_add(N)?)?.try_into().ok()
    }

    fn replace<const N: usize>(&self, address: u64, old: [u8; N], new: [u8; N]) -> bool {
        let same = self.bytes(address) == Some(old);
        if same {
            self.put(address, &new);
        }
        same
    }
}

impl GuestMemory for Memory {
    /// A valid address, or [`ZEROS`](GuestMemory::ZEROS).
    type Place = u64;

    const ZEROS: u64 = u64::MAX;

    fn place(&self, address: u64) -> Option<u64> {
        self.bytes::<8>(address).map(|_| address)
    }

    fn look(&self, place: u64) -> u64 {
        if place == Self::ZEROS { 0 } else { self.read_u64(place).expect("a place that was found") }
    }

    fn read_u64(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    fn read_u32(&self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool {
        self.replace(address, old.to_le_bytes(), new.to_le_bytes())
    }

    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool {
        self.replace(address, old.to_le_bytes(), new.to_le_bytes())
    }
}
