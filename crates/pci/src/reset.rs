//! How a function is reset.

use crate::ConfigSpace;
use crate::bar::BARS;
use crate::capability::{capabilities, id};
use crate::function::FLR;
use crate::register::ID;

const VIRTIO: u32 = 0x1af4;
/// The type of virtio's capability that places the common configuration (VIRTIO 1.2, 4.1.4.3), and the offset of
/// the device's status there.
const VIRTIO_COMMON: u32 = 1;
const VIRTIO_STATUS: u64 = 0x14;

/// A way to reset a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Function-level reset: bit 15 of the device control register at this offset. It takes 100 ms, and the
    /// function forgets its BARs.
    Function(u8),
    /// Virtio's reset: a zero byte at this offset of a BAR.
    Virtio {
        /// The BAR.
        bar: usize,
        /// Offset of the byte in it.
        offset: u64,
    },
}

/// Finds a way to reset a function.
pub fn find_reset(space: &impl ConfigSpace) -> Option<Reset> {
    let vendor = space.read(ID) & 0xffff;
    let mut found = None;
    for capability in capabilities(space) {
        let at = |offset: u8| capability.offset.checked_add(offset).map(|register| space.read(register));
        if capability.id == id::EXPRESS && at(4)? & FLR != 0 {
            return Some(Reset::Function(capability.offset + 8));
        }
        if capability.id == id::VENDOR && vendor == VIRTIO && capability.header >> 24 == VIRTIO_COMMON {
            let bar = (at(4)? & 0xff) as usize;
            found = (bar < BARS).then_some(Reset::Virtio { bar, offset: u64::from(at(8)?) + VIRTIO_STATUS });
        }
    }
    found
}
