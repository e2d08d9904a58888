//! Event records (chapter 7).

use stile_pci::Access;

/// Reason for which a transaction was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// F_TRANSLATION, F_ADDR_SIZE, F_ACCESS: nothing is mapped at the address.
    Unmapped,
    /// F_PERMISSION: what is mapped there may not be accessed so.
    Permission,
    /// C_BAD_STREAMID, C_BAD_STE, F_STREAM_DISABLED and others: the stream has no owner.
    Stream,
    /// Another one, by its number.
    Other(u8),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub kind: Kind,
    /// The stream that caused it.
    pub stream: u32,
    /// The direction, where the kind has one.
    pub access: Access,
    /// The input address, where the kind has one.
    pub address: u64,
}

impl Event {
    /// Decodes a record.
    pub const fn decode(words: [u64; 4]) -> Event {
        let kind = match words[0] as u8 {
            0x10..=0x12 => Kind::Unmapped,
            0x13 => Kind::Permission,
            0x02 | 0x04 | 0x06 => Kind::Stream,
            other => Kind::Other(other),
        };
        // RnW is bit 99.
        let access = if words[1] >> 35 & 1 != 0 { Access::Read } else { Access::Write };
        Event { kind, stream: (words[0] >> 32) as u32, access, address: words[2] }
    }
}
