//! Negotiation of features.

/// VIRTIO_F_VERSION_1, which drivers of this transport must accept (Virtio 1.2, section 6.1).
const VERSION_1: u64 = 1 << 32;

/// Features that need support by the transport, which has none: VIRTIO_F_SR_IOV, VIRTIO_F_NOTIFICATION_DATA,
/// VIRTIO_F_NOTIF_CONFIG_DATA, VIRTIO_F_RING_RESET and VIRTIO_F_ADMIN_VQ.
const UNSUPPORTED: u64 = 1 << 37 | 1 << 38 | 1 << 39 | 1 << 40 | 1 << 41;

/// Features as offered by the server and accepted by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Offered bits. VERSION_1 is always offered.
    offered: u64,
    /// Half that the driver reads: any value.
    pub offered_select: u32,
    /// Half that the server writes.
    pub server_select: u32,
    /// Accepted bits, valid or not.
    pub accepted: u64,
    /// Half that the driver writes: any value.
    pub accepted_select: u32,
}

/// Replaces a half of `bits`; halves above 1 do not exist.
const fn with_half(bits: u64, half: u32, value: u32) -> u64 {
    match half {
        0 => bits & 0xffff_ffff_0000_0000 | value as u64,
        1 => bits & 0xffff_ffff | (value as u64) << 32,
        _ => bits,
    }
}

/// Returns a half of `bits`; halves above 1 are 0.
pub const fn half(bits: u64, half: u32) -> u32 {
    match half {
        0 => bits as u32,
        1 => (bits >> 32) as u32,
        _ => 0,
    }
}

impl Features {
    /// Nothing offered but VERSION_1.
    pub const fn new() -> Self {
        Self { offered: VERSION_1, offered_select: 0, server_select: 0, accepted: 0, accepted_select: 0 }
    }

    /// Offered bits.
    pub const fn offered(&self) -> u64 {
        self.offered
    }

    /// Offers the selected half, for the server.
    pub const fn offer(&mut self, value: u32) {
        self.offered = with_half(self.offered, self.server_select, value) & !UNSUPPORTED | VERSION_1;
    }

    /// Accepts the selected half, for the driver.
    pub const fn accept(&mut self, value: u32) {
        self.accepted = with_half(self.accepted, self.accepted_select, value);
    }

    /// Whether the accepted bits are a valid choice.
    pub const fn are_valid(&self) -> bool {
        self.accepted & !self.offered == 0 && self.accepted & VERSION_1 != 0
    }

    /// Forgets the driver's part.
    pub const fn reset(&mut self) {
        (self.offered_select, self.accepted, self.accepted_select) = (0, 0, 0);
    }
}
