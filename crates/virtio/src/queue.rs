//! A queue's configuration.

use crate::MAX_QUEUE_SIZE;

/// Configuration of a queue. Addresses are the driver's and untrusted: any value, aligned or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Maximum size in descriptors, by the server's choice; 0 if there is no such queue.
    pub maximum: u16,
    /// Size in descriptors: at most `maximum`, which may have become smaller since.
    pub size: u16,
    /// Whether the driver has enabled it. Its size is not 0 then.
    pub ready: bool,
    /// Client-physical address of the descriptor table, or of a packed queue's ring.
    pub descriptors: u64,
    /// Client-physical address of the driver area (available ring).
    pub driver: u64,
    /// Client-physical address of the device area (used ring).
    pub device: u64,
}

impl Queue {
    /// No queue.
    pub const ABSENT: Queue = Queue { maximum: 0, size: 0, ready: false, descriptors: 0, driver: 0, device: 0 };

    /// Sets the maximum, for the server; values out of range are ignored.
    pub const fn set_maximum(&mut self, value: u32) {
        if value <= MAX_QUEUE_SIZE as u32 {
            self.maximum = value as u16;
        }
    }

    /// Sets the size, for the driver; values out of range are ignored.
    pub const fn set_size(&mut self, value: u32) {
        if !self.ready && value != 0 && value <= self.maximum as u32 {
            self.size = value as u16;
        }
    }

    /// Enables or disables it. A queue without a size stays disabled.
    pub const fn set_ready(&mut self, value: u32) {
        self.ready = value & 1 != 0 && self.size != 0;
    }

    /// Forgets the driver's part.
    pub const fn reset(&mut self) {
        *self = Queue { maximum: self.maximum, ..Queue::ABSENT };
    }
}

/// Replaces the lower half of an address.
pub const fn set_low(address: &mut u64, value: u32) {
    *address = *address & 0xffff_ffff_0000_0000 | value as u64;
}

/// Replaces the upper half of an address.
pub const fn set_high(address: &mut u64, value: u32) {
    *address = *address & 0xffff_ffff | (value as u64) << 32;
}
