//! A virtio function: its registers, its queues, and its vectors.

use common::check;
use common::fail::{Fail, Outcome};
use pc::others;

use crate::function::{Function, read, write};

/// Vendor and device of `virtio-rng`, and of `virtio-serial`.
pub const RNG: u32 = 0x1044_1af4;
pub const SERIAL: u32 = 0x1043_1af4;
/// Memory of the queue: descriptors, available ring, used ring, and the buffer.
pub const DESCRIPTORS: u64 = 41 << 20;
pub const AVAILABLE: u64 = DESCRIPTORS + 0x1000;
pub const USED: u64 = DESCRIPTORS + 0x2000;
pub const BUFFER: u64 = DESCRIPTORS + 0x3000;

/// Offsets in the common configuration (VIRTIO 1.2, 4.1.4.3).
pub mod common_config {
    pub const DRIVER_FEATURE_SELECT: u64 = 0x8;
    pub const DRIVER_FEATURE: u64 = 0xc;
    pub const MSIX_CONFIG: u64 = 0x10;
    pub const STATUS: u64 = 0x14;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_ADDRESSES: u64 = 0x20;
}
use common_config::*;

/// ACKNOWLEDGE, DRIVER, FEATURES_OK; and DRIVER_OK.
const ACCEPTED: u64 = 1 | 2 | 8;
const READY: u64 = ACCEPTED | 4;
/// VIRTIO_F_VERSION_1 and VIRTIO_F_ACCESS_PLATFORM, in the upper word.
const FEATURES: u64 = 1 | 2;

/// The function.
#[derive(Clone, Copy)]
pub struct Virtio {
    pub function: Function,
    /// Addresses of the common configuration, and of the first queue's doorbell.
    pub common: u64,
    pub notify: u64,
    /// Distance of the doorbells of two queues (notify_off_multiplier).
    pub step: u64,
    /// Address of the MSI-X table.
    pub table: u64,
    /// Offset of the MSI-X capability.
    pub msix: u64,
}

impl Virtio {
    /// The function with this vendor and device, with its BARs where [`Function::connect`] places them.
    pub fn find(id: u32) -> Option<Virtio> {
        let function = Function::find(id)?;
        let capability = |kind| function.capability(|header| header & 0xff == 9 && header >> 24 == kind);
        let structure = |kind| {
            let at = capability(kind)?;
            Some(function.place(u64::from(function.read(at + 4) & 7)) + u64::from(function.read(at + 8)))
        };
        let step = function.read(capability(2)? + 16).into();
        let msix = function.capability(|header| header & 0xff == 0x11)?;
        let place = function.read(msix + 4);
        let table = function.place(u64::from(place & 7)) + u64::from(place & !7);
        Some(Virtio { function, common: structure(1)?, notify: structure(2)?, step, table, msix })
    }

    /// Resets the device.
    ///
    /// # Errors
    /// It does not become idle.
    pub fn reset(self) -> Outcome {
        write(self.common + STATUS, 1, 0);
        check!(others::wait(|| read(self.common + STATUS, 1) == 0), "a virtio function does not reset");
        Ok(())
    }

    /// Sets up its first queue, whose messages use vector 0.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start(self, size: u64, addresses: [u64; 3]) -> Outcome {
        self.start_queues([0], size, addresses)
    }

    /// Sets up queues, all at the same addresses. The messages of the nth one, from 0, use vector n.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start_queues(self, queues: impl IntoIterator<Item = u64>, size: u64, addresses: [u64; 3]) -> Outcome {
        self.reset()?;
        let set = |offset, bytes, value| write(self.common + offset, bytes, value);
        set(STATUS, 1, 1 | 2);
        for (word, features) in [(0, 0), (1, FEATURES)] {
            set(DRIVER_FEATURE_SELECT, 4, word);
            set(DRIVER_FEATURE, 4, features);
        }
        set(STATUS, 1, ACCEPTED);
        set(MSIX_CONFIG, 2, 1);
        for (vector, queue) in (0..).zip(queues) {
            set(QUEUE_SELECT, 2, queue);
            set(QUEUE_SIZE, 2, size);
            set(QUEUE_VECTOR, 2, vector);
            for (index, address) in addresses.into_iter().enumerate() {
                set(QUEUE_ADDRESSES + 8 * index as u64, 4, address & 0xffff_ffff);
                set(QUEUE_ADDRESSES + 8 * index as u64 + 4, 4, address >> 32);
            }
            set(QUEUE_ENABLE, 2, 1);
        }
        set(STATUS, 1, READY);
        if read(self.common + STATUS, 1) & ACCEPTED == ACCEPTED {
            return Ok(());
        }
        Err(Fail::new(format_args!("a virtio function refuses the driver")))
    }

    /// Starts the device with a queue of two descriptors, each of a byte. Returns the queue.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start_tiny(self) -> Result<Queue, Fail> {
        for page in [DESCRIPTORS, AVAILABLE, USED] {
            (0..4096).step_by(8).for_each(|at| write(page + at, 8, 0));
        }
        for index in 0..2 {
            write(DESCRIPTORS + 16 * index, 8, BUFFER + index);
            // The device writes 1 byte.
            write(DESCRIPTORS + 16 * index + 8, 8, 1 | 2 << 32);
        }
        self.start(2, [DESCRIPTORS, AVAILABLE, USED])?;
        Ok(Queue { rng: self, next: 0 })
    }

    /// Enables MSI-X, with all vectors masked or not.
    pub fn enable_messages(self, is_masked: bool) {
        write(self.function.register(self.msix + 2), 2, 1 << 15 | u64::from(is_masked) << 14);
    }

    /// Sets the message of a vector and unmasks it.
    pub fn set_vector(self, vector: u64, address: u64, data: u64) {
        let entry = self.table + 16 * vector;
        write(entry + 12, 4, 1);
        write(entry, 8, address);
        write(entry + 8, 4, data);
        write(entry + 12, 4, 0);
    }
}

/// A queue of two descriptors.
pub struct Queue {
    rng: Virtio,
    next: u64,
}

impl Queue {
    /// Makes a request, which ends with a message.
    pub fn request(&mut self) {
        write(AVAILABLE + 4 + 2 * (self.next % 2), 2, self.next % 2);
        self.next += 1;
        write(AVAILABLE + 2, 2, self.next & 0xffff);
        write(self.rng.notify, 2, 0);
    }

    /// Whether all requests are finished.
    pub fn is_idle(&self) -> bool {
        read(USED + 2, 2) == self.next & 0xffff
    }
}
