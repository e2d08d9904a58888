//! Ethernet frames as they are in virtio's buffers.

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Size of the header before each frame (Virtio 1.2, section 5.1.6), in bytes.
pub const HEADER: usize = 12;
/// Destination, source and type of a frame, in bytes.
pub const ETHERNET: usize = 14;
