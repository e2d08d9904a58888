//! Reset of a function.

use crate::ConfigSpace;
use crate::bar::BARS;
use crate::capability::{Capability, capabilities, id};
use crate::function::FLR;
use crate::register::ID;

const VIRTIO: u32 = 0x1af4;
/// The type of virtio's capability that places the common configuration (VIRTIO 1.2, 4.1.4.3), and the offset of
/// the device's status there.
const VIRTIO_COMMON: u32 = 1;
const VIRTIO_STATUS: u64 = 0x14;

/// Offsets of the device capabilities and of device control in the PCI Express capability (PCI Express Base Specification 3.0, 7.8).
const DEVICE_CAPABILITIES: u8 = 4;
const DEVICE_CONTROL: u8 = 8;

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
    for capability in capabilities(space).filter(|capability| capability.id == id::EXPRESS) {
        // Malformed: device control would be past the end of configuration space.
        let Some(control) = capability.offset.checked_add(DEVICE_CONTROL) else { continue };
        if space.read(capability.offset + DEVICE_CAPABILITIES) & FLR != 0 {
            return Some(Reset::Function(control));
        }
    }
    virtio_common(space).map(|(bar, offset)| Reset::Virtio { bar, offset: offset + VIRTIO_STATUS })
}

/// Whether it is a virtio function (VIRTIO 1.2, 4.1.2).
pub fn is_virtio(space: &impl ConfigSpace) -> bool {
    let id = space.read(ID);
    id & 0xffff == VIRTIO && (0x1000..0x1080).contains(&(id >> 16))
}

/// The BAR and the offset of a virtio function's common configuration. The last one that it names counts.
pub fn virtio_common(space: &impl ConfigSpace) -> Option<(usize, u64)> {
    if !is_virtio(space) {
        return None;
    }
    let common = |capability: &Capability| capability.id == id::VENDOR && capability.header >> 24 == VIRTIO_COMMON;
    let capability = capabilities(space).filter(common).last()?;
    let bar = (space.read(capability.offset.checked_add(4)?) & 0xff) as usize;
    let offset = space.read(capability.offset.checked_add(8)?);
    (bar < BARS).then_some((bar, offset.into()))
}
