//! The interrupt lines of the devices that all machines have.

/// An interrupt line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The UART's.
    Uart,
    /// The clock's.
    Clock,
}
