//! A PL011 (Arm DDI 0183), under the console.

use super::mmio::Mmio;

const DR: usize = 0x00;
/// Flags.
pub const FR: usize = 0x18;
const LCR_H: usize = 0x2c;
const CR: usize = 0x30;
const IFLS: usize = 0x34;
const IMSC: usize = 0x38;
const ICR: usize = 0x44;
const FR_RXFE: u32 = 1 << 4;
const FR_TXFF: u32 = 1 << 5;
const INT_RX: u32 = 1 << 4;
const INT_TX: u32 = 1 << 5;
const INT_RT: u32 = 1 << 6;

/// Whether the registers are those of a PL011 or an SBSA generic UART: the interrupt mask (IMSC) reads back as written.
pub fn is_present(registers: &Mmio) -> bool {
    let keeps = |mask: u32| {
        registers.write32(IMSC, mask);
        registers.read32(IMSC) == mask
    };
    keeps(INT_RX) && keeps(INT_TX) && keeps(0)
}

/// A PL011.
pub struct Pl011(Mmio);

impl Pl011 {
    /// Takes over the UART with firmware's speed, FIFOs enabled, interrupts disabled.
    pub fn new(registers: Mmio) -> Pl011 {
        registers.write32(IMSC, 0);
        registers.write32(ICR, 0x7ff);
        registers.write32(LCR_H, registers.read32(LCR_H) | 1 << 4 | 0b11 << 5);
        registers.write32(CR, 1 << 9 | 1 << 8 | 1);
        Pl011(registers)
    }

    /// Sends a byte if the FIFO has room.
    pub fn try_send(&self, byte: u8) -> bool {
        if self.0.read32(FR) & FR_TXFF != 0 {
            return false;
        }
        self.0.write32(DR, u32::from(byte));
        true
    }

    /// Returns a received byte.
    pub fn try_receive(&self) -> Option<u8> {
        (self.0.read32(FR) & FR_RXFE == 0).then(|| self.0.read32(DR) as u8)
    }

    /// Clears the interrupt, and selects whether to be interrupted for transmit room as well.
    pub fn set_interrupts(&self, receive: bool, send: bool) {
        self.0.write32(IFLS, 0b010 << 3);
        // Not the receive interrupts: reading the FIFO clears them, and clearing them here could lose that of a byte just
        // received. Nor a transmit interrupt that is wanted: a full FIFO deasserts it (DDI 0183, "UARTTXINTR"), and one that is
        // not full, as under QEMU, has asserted it at the last write and would not do so again.
        if !send {
            self.0.write32(ICR, INT_TX);
        }
        self.0.write32(IMSC, if receive { INT_RX | INT_RT } else { 0 } | if send { INT_TX } else { 0 });
    }
}
