//! The operator's line.

/// The serial line to the operator. Called with the console locked, by any CPU, from boot on; without a line, output
/// is discarded.
pub trait SerialLine {
    /// Sends a byte. Returns false immediately if the transmitter has no room.
    fn try_send(byte: u8) -> bool;

    /// Returns a received byte, if any.
    fn try_receive() -> Option<u8>;

    /// Enables or disables interrupts for received bytes, and for room in the transmitter. Their handler calls
    /// [`crate::operator::console_interrupt`].
    fn set_interrupts(receive: bool, send: bool);
}
