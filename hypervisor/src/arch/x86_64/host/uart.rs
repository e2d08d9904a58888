//! First serial port, a 16550 (TL16C550C data sheet, "Register summary"), under the console.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::instructions::{in8, out8};

const BASE: u16 = 0x3f8;
/// ISA interrupt of the first serial port.
pub const ISA_IRQ: u8 = 4;

const DATA: u16 = BASE;
const INTERRUPT_ENABLE: u16 = BASE + 1;
const FIFO_CONTROL: u16 = BASE + 2;
const LINE_CONTROL: u16 = BASE + 3;
const MODEM_CONTROL: u16 = BASE + 4;
const LINE_STATUS: u16 = BASE + 5;
const SCRATCH: u16 = BASE + 7;

const RECEIVED: u8 = 1 << 0;
const TRANSMIT_EMPTY: u8 = 1 << 5;
const TRANSMITTED: u8 = 1 << 6;
/// Capacity of the transmit FIFO, in bytes.
const FIFO: u8 = 16;

static PRESENT: AtomicBool = AtomicBool::new(false);
/// Number of bytes that may be sent before the line status is read again. Accessed under the console's lock.
static ROOM: AtomicU8 = AtomicU8::new(0);

fn read(port: u16) -> u8 {
    // SAFETY: the port is this UART's, which only the console uses.
    unsafe { in8(port) }
}

fn write(port: u16, value: u8) {
    // SAFETY: the port is this UART's, which only the console uses.
    unsafe { out8(port, value) }
}

/// Takes over the UART if there is one: 115,200 baud, 8N1, FIFOs enabled, interrupts disabled.
pub fn setup() {
    write(SCRATCH, 0x5a);
    if read(SCRATCH) != 0x5a {
        return;
    }
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, 0x80);
    write(DATA, 1);
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, 0b11);
    // FIFOs enabled and cleared; a receive interrupt for each byte.
    write(FIFO_CONTROL, 0b111);
    // DTR, RTS, and OUT2, which gates the interrupt on a PC.
    write(MODEM_CONTROL, 0b1011);
    PRESENT.store(true, Ordering::Relaxed);
}

/// Sends a byte if the FIFO has room.
pub fn try_send(byte: u8) -> bool {
    if !PRESENT.load(Ordering::Relaxed) {
        return true;
    }
    let mut room = ROOM.load(Ordering::Relaxed);
    if room == 0 {
        if read(LINE_STATUS) & TRANSMIT_EMPTY == 0 {
            return false;
        }
        room = FIFO;
    }
    ROOM.store(room - 1, Ordering::Relaxed);
    write(DATA, byte);
    true
}

/// Waits until the transmitter is empty.
pub fn finish() {
    while PRESENT.load(Ordering::Relaxed) && read(LINE_STATUS) & TRANSMITTED == 0 {
        core::hint::spin_loop();
    }
}

/// Returns a received byte.
pub fn try_receive() -> Option<u8> {
    (PRESENT.load(Ordering::Relaxed) && read(LINE_STATUS) & RECEIVED != 0).then(|| read(DATA))
}

/// Clears the interrupt, and selects the next ones.
pub fn set_interrupts(receive: bool, send: bool) {
    if PRESENT.load(Ordering::Relaxed) {
        // The line is edge-triggered: it must fall before it can rise for a pending cause.
        write(INTERRUPT_ENABLE, 0);
        write(INTERRUPT_ENABLE, u8::from(receive) | u8::from(send) << 1);
    }
}
