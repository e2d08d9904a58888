//! Interrupt lines of the devices that every machine has.

/// An interrupt line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Line of the UART.
    Uart,
    /// Line of the clock.
    Clock,
}
