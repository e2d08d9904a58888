//! The disk that the server serves, and its requests.

/// Kinds of requests.
pub mod kind {
    /// VIRTIO_BLK_T_IN.
    pub const READ: u32 = 0;
    /// VIRTIO_BLK_T_OUT.
    pub const WRITE: u32 = 1;
    /// The server resets its machine before it answers; once.
    pub const REBOOT: u32 = 0x1000;
    /// The client ends.
    pub const END: u32 = 0x1001;
    /// The server acknowledges nothing for [`super::SLEEP`] seconds, and then answers.
    pub const SLEEP: u32 = 0x1002;
}

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Sectors of the disk.
pub const SECTORS: u64 = 64;

/// Seconds of [`kind::SLEEP`].
pub const SLEEP: u64 = 100;

/// Queue of both programs: its largest size.
pub const SIZE: u16 = 8;
