//! The memory window of a host bridge: addresses for BARs.

use core::ops::Range;

/// Addresses of a window that no BAR has yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    free: Range<u64>,
}

impl Window {
    /// A window of which nothing is in use.
    pub const fn new(addresses: Range<u64>) -> Window {
        Window { free: addresses }
    }

    /// Takes `size` bytes, a power of two, aligned to that; `None` if they don't fit.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        if !size.is_power_of_two() {
            return None;
        }
        let start = self.free.start.checked_next_multiple_of(size)?;
        let end = start.checked_add(size).filter(|&end| end <= self.free.end)?;
        self.free.start = end;
        Some(start)
    }
}
