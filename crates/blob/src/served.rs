//! A virtio device that one virtual machine serves another.

use serde::{Deserialize, Serialize};

/// Type of a traditional memory balloon (Virtio 1.2, section 5.5), by which a virtual machine gives RAM back.
pub const BALLOON: u32 = 5;

/// A virtio device of a virtual machine that another one serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Type of the device (Virtio 1.2, section 5).
    pub device: u32,
    /// The number of the virtual machine that serves it.
    pub server: u8,
}
