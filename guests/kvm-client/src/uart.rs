//! As much of a PL011 as the probe uses: output, a line at a time.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

const BASE: u64 = 0x0900_0000;
const SIZE: u64 = 0x1000;
/// Data register.
const DR: u64 = BASE;
/// Flag register.
const FR: u64 = BASE + 0x18;
/// FR: the transmit FIFO is empty, and so is the receive FIFO.
const EMPTY: u32 = 1 << 7 | 1 << 4;

/// The line that is being written.
static LINE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// A guest's read.
pub fn read(address: u64, data: &mut [u8]) {
    let value = if address == FR { EMPTY } else { 0 };
    data.fill(0);
    data.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
}

/// A guest's write.
pub fn write(address: u64, data: &[u8]) {
    let (DR, [byte, ..]) = (address, data) else { return };
    let mut line = LINE.lock().unwrap_or_else(PoisonError::into_inner);
    line.push(*byte);
    if *byte == b'\n' {
        flush(&mut line);
    }
}

/// Whether an address is the UART's.
pub fn is_here(address: u64) -> bool {
    (BASE..BASE + SIZE).contains(&address)
}

/// Writes out an unfinished line.
pub fn finish() {
    flush(&mut LINE.lock().unwrap_or_else(PoisonError::into_inner));
}

fn flush(line: &mut Vec<u8>) {
    // Nobody is there to be told that the console fails.
    let _ = std::io::stdout().write_all(line).and_then(|()| std::io::stdout().flush());
    line.clear();
}
