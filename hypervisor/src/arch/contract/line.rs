//! The operator's line.

/// The serial line over which Stile talks to its operator. Called with the console locked, by any CPU, from boot on; where the board has no
/// line, bytes are taken and lost.
pub trait SerialLine {
    /// Sends a byte. False, at once, if the transmitter has no room.
    fn try_send(byte: u8) -> bool;

    /// A byte that was received, if there is one.
    fn try_receive() -> Option<u8>;

    /// Chooses whether received bytes, and room in the transmitter, interrupt a CPU. The handler calls [`crate::console_interrupt`].
    fn set_interrupts(receive: bool, send: bool);
}
