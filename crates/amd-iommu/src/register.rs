//! Memory-mapped registers, by their offsets in bytes, and their bits ("MMIO Registers").

use crate::ENTRIES;

/// Size of the registers in bytes.
pub const SIZE: u64 = 16 << 10;

/// Device Table Base Address.
pub const DEVICE_TABLE: usize = 0x00;
/// Command Buffer Base Address.
pub const COMMAND_BUFFER: usize = 0x08;
/// Event Log Base Address. A write sets the log's head and tail to 0.
pub const EVENT_LOG: usize = 0x10;
/// Control.
pub const CONTROL: usize = 0x18;
/// Exclusion Base: a range that is not translated.
pub const EXCLUSION_BASE: usize = 0x20;
/// Exclusion Range Limit.
pub const EXCLUSION_LIMIT: usize = 0x28;
/// Extended Feature.
pub const FEATURES: usize = 0x30;
/// Command Buffer Head: an offset in bytes, as the next three.
pub const COMMAND_HEAD: usize = 0x2000;
/// Command Buffer Tail.
pub const COMMAND_TAIL: usize = 0x2008;
/// Event Log Head.
pub const EVENT_HEAD: usize = 0x2010;
/// Event Log Tail.
pub const EVENT_TAIL: usize = 0x2018;
/// Status.
pub const STATUS: usize = 0x2020;

/// IASup, in [`FEATURES`]: the IOMMU has [`invalidate_all`](crate::command::invalidate_all).
pub const INVALIDATE_ALL: u64 = 1 << 6;

/// Bits of [`CONTROL`].
pub mod control {
    /// IommuEn.
    pub const ENABLE: u64 = 1 << 0;
    /// HtTunEn: requests that arrive by the HyperTransport tunnel are translated.
    pub const TUNNEL: u64 = 1 << 1;
    /// EventLogEn.
    pub const EVENT_LOG: u64 = 1 << 2;
    /// EventIntEn.
    pub const EVENT_INTERRUPT: u64 = 1 << 3;
    /// Coherent: reads of the device table are snooped.
    pub const COHERENT: u64 = 1 << 10;
    /// CmdBufEn.
    pub const COMMANDS: u64 = 1 << 12;
}

/// Bits of [`STATUS`]. The first two are cleared by writing ones.
pub mod status {
    /// EventOverflow: the log was full, and events are lost until it is restarted.
    pub const EVENT_OVERFLOW: u64 = 1 << 0;
    /// EventLogInt: an event was logged.
    pub const EVENT_INTERRUPT: u64 = 1 << 1;
    /// EventLogRun.
    pub const EVENT_LOG_RUNS: u64 = 1 << 3;
    /// CmdBufRun: clear if the IOMMU has stopped at a command.
    pub const COMMANDS_RUN: u64 = 1 << 4;
}

/// Value of [`DEVICE_TABLE`] for a table at a physical address, of a whole number of pages: up to 512.
pub const fn device_table(address: u64, pages: u64) -> u64 {
    address & 0x000f_ffff_ffff_f000 | (pages - 1) & 0x1ff
}

/// Value of [`COMMAND_BUFFER`] or [`EVENT_LOG`] for one at a physical address, with [`ENTRIES`] entries.
pub const fn ring(address: u64) -> u64 {
    address & 0x000f_ffff_ffff_f000 | (ENTRIES.trailing_zeros() as u64) << 56
}
