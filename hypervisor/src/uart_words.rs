//! Access to a UART whose registers are words.

/// Access to the registers, which the caller maps.
pub trait WordRegisters {
    /// Reads the register at an offset in bytes.
    fn read(&self, offset: usize) -> u32;
    /// Writes the register at an offset in bytes.
    fn write(&self, offset: usize, value: u32);
}
