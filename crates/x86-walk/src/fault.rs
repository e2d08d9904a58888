//! Page faults.

/// A page fault to be injected into the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The linear address, for CR2.
    pub linear: u64,
    /// The error code.
    pub code: ErrorCode,
}

/// The error code of a page fault ("Page-Fault Exceptions").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The fault is a protection violation of a present translation.
    pub const PRESENT: u32 = 1 << 0;
    /// The access was a write.
    pub const WRITE: u32 = 1 << 1;
    /// The access was a user-mode one.
    pub const USER: u32 = 1 << 2;
    /// A reserved bit was set in an entry.
    pub const RESERVED: u32 = 1 << 3;
    /// The access was an instruction fetch.
    pub const FETCH: u32 = 1 << 4;

    /// Whether all these bits are set.
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}
