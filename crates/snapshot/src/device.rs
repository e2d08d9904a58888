//! State of devices.

use serde::{Deserialize, Serialize};

/// A PL011. Fields are registers unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pl011 {
    /// UARTRIS.
    pub raw: u32,
    /// UARTIMSC.
    pub mask: u32,
    /// UARTLCR_H.
    pub line_control: u32,
    /// UARTCR.
    pub control: u32,
    /// UARTIFLS.
    pub level_select: u32,
    /// UARTILPR.
    pub low_power: u32,
    /// UARTIBRD.
    pub baud_integer: u32,
    /// UARTFBRD.
    pub baud_fraction: u32,
    /// UARTDMACR.
    pub dma: u32,
    /// Received characters, oldest first.
    pub received: [u8; 32],
    /// Number of received characters, at most 32.
    pub count: u8,
    /// Whether the transmit FIFO appeared full to the guest (back pressure of the console).
    pub full: bool,
}

/// A PL031.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pl031 {
    /// Counter minus the sum of time of day and `lead`, in seconds modulo 2^32.
    pub ahead: u32,
    /// Seconds added to the time of day, so that the counter does not go back when the VM moves to a host whose clock is
    /// behind.
    pub lead: u64,
    /// RTCMR.
    pub matching: u32,
    /// RTCLR.
    pub loaded: u32,
    /// RTCRIS.
    pub raw: u32,
    /// RTCIMSC.
    pub mask: u32,
    /// Time of day, in seconds and without `lead`, at which the counter next equals RTCMR; `None` if the guest has not set
    /// RTCMR.
    pub alarm: Option<u64>,
}
