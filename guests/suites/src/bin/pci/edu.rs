//! The function's registers, through the host bridge of the board.

use payload::prelude::*;
use payload::uart::Reg32;

/// Configuration space of bus 0, and the window for BARs, as in the device tree.
pub const ECAM: u64 = 0x3F00_0000;
pub const WINDOW: u64 = 0x1000_0000;
/// Address of the function's only BAR.
pub const BAR: u64 = WINDOW + 0x40_0000;
pub const BAR_SIZE: u64 = 0x10_0000;

/// Vendor and device.
pub const ID: u32 = 0x11E8_1234;
/// Value of its first register: "ed" in the lower half, and the version in the highest byte.
pub const IDENTIFICATION: u32 = 0x0100_00ED;

/// Command register: memory decoding, bus mastering.
pub const MEMORY: u32 = 1 << 1;
pub const MASTER: u32 = 1 << 2;

/// Its buffer, by the addresses that its DMA has for it.
const BUFFER: u64 = 0x4_0000;
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
const START: u32 = 1;
/// From its buffer to memory.
const TO_MEMORY: u32 = 2;

/// A register of device `device`'s configuration space.
pub fn config(device: u64, offset: u64) -> Reg32 {
    Reg32(ECAM + (device << 15) + offset)
}

/// A register of the function's configuration space.
pub fn own_config(offset: u64) -> Reg32 {
    config(1, offset)
}

/// A register in its BAR.
pub fn register(offset: u64) -> Reg32 {
    Reg32(BAR + offset)
}

/// Puts the BAR into its place, and turns decoding and bus mastering on.
pub fn connect() {
    own_config(4).write(0);
    own_config(0x10).write(BAR as u32);
    own_config(4).write(MEMORY | MASTER);
}

fn start(source: u64, destination: u64, count: u32, command: u32) {
    for (offset, value) in [(SOURCE, source), (DESTINATION, destination)] {
        register(offset).write(value as u32);
        register(offset + 4).write((value >> 32) as u32);
    }
    register(COUNT).write(count);
    register(COMMAND).write(command | START);
}

/// Starts a copy of the function's buffer to memory.
pub fn start_write(address: u64, count: u32) {
    start(BUFFER, address, count, TO_MEMORY);
}

fn finished() -> bool {
    wait::until(|| register(COMMAND).read() & START == 0)
}

/// Copies memory to its buffer.
pub fn read(address: u64, count: u32) -> Outcome {
    start(address, BUFFER, count, 0);
    check!(finished(), "reading {address:#x} does not end");
    Ok(())
}

/// Copies its buffer to memory.
pub fn write(address: u64, count: u32) -> Outcome {
    start_write(address, count);
    check!(finished(), "writing {address:#x} does not end");
    Ok(())
}
