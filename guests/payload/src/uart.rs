//! The PL011's and PL031's registers.

use crate::board;

/// A memory-mapped 32-bit register, by guest-physical address (device memory is identity-mapped).
#[derive(Clone, Copy)]
pub struct Reg32(pub u64);

impl Reg32 {
    /// Reads the register.
    pub fn read(self) -> u32 {
        let value: u32;
        // SAFETY: device memory, without Rust objects. One plain LDR, which always has a syndrome.
        unsafe { core::arch::asm!("ldr {:w}, [{}]", out(reg) value, in(reg) self.0, options(nostack, preserves_flags)) };
        value
    }

    /// Writes the register.
    pub fn write(self, value: u32) {
        // SAFETY: device memory, without Rust objects. One plain STR, which always has a syndrome.
        unsafe { core::arch::asm!("str {:w}, [{}]", in(reg) value, in(reg) self.0, options(nostack, preserves_flags)) };
    }
}

/// The PL011 (PrimeCell UART (PL011), chapter "Programmers Model").
#[allow(missing_docs)]
pub mod pl011 {
    use super::{Reg32, board::UART};

    pub const DR: Reg32 = Reg32(UART);
    pub const FR: Reg32 = Reg32(UART + 0x18);
    pub const IBRD: Reg32 = Reg32(UART + 0x24);
    pub const FBRD: Reg32 = Reg32(UART + 0x28);
    pub const LCR_H: Reg32 = Reg32(UART + 0x2C);
    pub const CR: Reg32 = Reg32(UART + 0x30);
    pub const IFLS: Reg32 = Reg32(UART + 0x34);
    pub const IMSC: Reg32 = Reg32(UART + 0x38);
    pub const RIS: Reg32 = Reg32(UART + 0x3C);
    pub const MIS: Reg32 = Reg32(UART + 0x40);
    pub const ICR: Reg32 = Reg32(UART + 0x44);
    pub const PERIPH_ID: u64 = UART + 0xFE0;
    pub const CELL_ID: u64 = UART + 0xFF0;

    pub const FR_BUSY: u32 = 1 << 3;
    pub const FR_RXFE: u32 = 1 << 4;
    pub const FR_TXFF: u32 = 1 << 5;
    pub const FR_TXFE: u32 = 1 << 7;
    pub const CR_UARTEN: u32 = 1;
    pub const CR_LBE: u32 = 1 << 7;
    pub const CR_TXE: u32 = 1 << 8;
    pub const CR_RXE: u32 = 1 << 9;
    pub const LCR_FEN: u32 = 1 << 4;
    pub const LCR_8BIT: u32 = 3 << 5;
    pub const INT_RX: u32 = 1 << 4;
    pub const INT_TX: u32 = 1 << 5;
    pub const INT_RT: u32 = 1 << 6;
}

/// The PL031 (PrimeCell Real Time Clock (PL031), chapter "Programmers Model").
#[allow(missing_docs)]
pub mod pl031 {
    use super::{Reg32, board::RTC};

    pub const DR: Reg32 = Reg32(RTC);
    pub const MR: Reg32 = Reg32(RTC + 0x04);
    pub const LR: Reg32 = Reg32(RTC + 0x08);
    pub const CR: Reg32 = Reg32(RTC + 0x0C);
    pub const IMSC: Reg32 = Reg32(RTC + 0x10);
    pub const RIS: Reg32 = Reg32(RTC + 0x14);
    pub const MIS: Reg32 = Reg32(RTC + 0x18);
    pub const ICR: Reg32 = Reg32(RTC + 0x1C);
    pub const PERIPH_ID: u64 = RTC + 0xFE0;
    pub const CELL_ID: u64 = RTC + 0xFF0;
}

/// Sets the UART up for output and input, FIFOs on, interrupts off.
pub fn init() {
    use pl011::*;
    CR.write(0);
    IMSC.write(0);
    ICR.write(0x7FF);
    LCR_H.write(LCR_8BIT | LCR_FEN);
    CR.write(CR_UARTEN | CR_TXE | CR_RXE);
}

/// Sends one byte, waiting for room in the FIFO.
pub fn put(byte: u8) {
    while pl011::FR.read() & pl011::FR_TXFF != 0 {
        core::hint::spin_loop();
    }
    pl011::DR.write(u32::from(byte));
}

/// The next byte received, if there is one.
pub fn get() -> Option<u8> {
    (pl011::FR.read() & pl011::FR_RXFE == 0).then(|| pl011::DR.read() as u8)
}
