//! Console output that resembles framing: a multiplexer of several consoles must not misinterpret it.

use payload::prelude::*;
use payload::uart::put;

use crate::virt;

/// DLE, the byte with which such a carrier might escape; others, just in case.
const ESCAPES: [u8; 4] = [0x10, 0x1B, 0x00, 0xFF];

fn line(bytes: impl IntoIterator<Item = u8>) {
    for byte in bytes {
        put(byte);
    }
    put(b'\r');
    put(b'\n');
}

pub fn run() -> Outcome {
    let mut random = virt::random();
    line(0..=255);
    for escape in ESCAPES {
        // Each byte after the escape byte, twice escaped, and a frame of random bytes.
        line((0..=255).flat_map(|byte| [escape, byte]));
        line((0..=255).flat_map(|byte| [escape, escape, byte]));
        for _ in 0..8 {
            put(escape);
            put(b'<');
            for _ in 0..random.below(24) {
                put(random.bits() as u8);
            }
            put(escape);
            put(b'>');
        }
        line([escape]);
    }
    // A line break, so that later output begins at the start of a line.
    line([]);
    Ok(())
}
