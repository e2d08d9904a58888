//! The device's PCI function: Virtio 1.2, section 4.1.

use crate::memory::{barrier, read16, read32, write8, write16, write32};

/// Configuration space of the first device, and of the one after it.
const SPACE: u64 = 0x3F10_8000;
const NEXT_SPACE: u64 = 0x3F11_0000;
/// Address of the BAR.
const BAR: u64 = 0x3F20_0000;
const BAR_SIZE: u64 = 0x1000;
const DOORBELL: u32 = 0x0802_0040;

/// Offsets in the BAR.
pub const FEATURE_SELECT: u64 = 0x00;
pub const FEATURE: u64 = 0x04;
pub const DRIVER_SELECT: u64 = 0x08;
pub const DRIVER_FEATURE: u64 = 0x0C;
pub const STATUS: u64 = 0x14;
pub const QUEUE: u64 = 0x16;
pub const QUEUE_SIZE: u64 = 0x18;
pub const QUEUE_VECTOR: u64 = 0x1A;
pub const QUEUE_ENABLE: u64 = 0x1C;
pub const DESCRIPTORS: u64 = 0x20;
pub const AVAILABLE: u64 = 0x28;
pub const USED: u64 = 0x30;
pub const NOTIFY: u64 = 0x80;
pub const CONFIG: u64 = 0x100;
const TABLE: u64 = 0x800;

/// The address of a register of the BAR.
pub fn at(offset: u64) -> u64 {
    BAR + offset
}

/// Identification of the device, and of the one that follows.
pub fn identification() -> [u32; 2] {
    [read32(SPACE), read32(NEXT_SPACE)]
}

/// The types of the capabilities, in their order, and the size of the BAR.
pub fn capabilities() -> ([u32; 8], u64) {
    let mut found = [0; 8];
    let mut offset = u64::from(read32(SPACE + 0x34)) & 0xFC;
    for kind in &mut found {
        if offset == 0 {
            break;
        }
        let header = read32(SPACE + offset);
        *kind = if header & 0xFF == 9 { header >> 24 } else { header & 0xFF };
        offset = u64::from(header >> 8 & 0xFC);
    }
    write32(SPACE + 0x10, u32::MAX);
    (found, u64::from(!(read32(SPACE + 0x10) & !15)) + 1)
}

/// Places the BAR, and has the first vector send the message `data`, once it is unmasked.
pub fn set_up(data: u32) {
    write32(SPACE + 0x10, BAR as u32);
    // Memory, bus master.
    write16(SPACE + 4, 6);
    for (offset, value) in [(0, DOORBELL), (4, 0), (8, data), (12, 0)] {
        write32(BAR + TABLE + offset, value);
    }
    write16(SPACE + 0x42, 1 << 15);
}

/// Masks or unmasks the first vector.
pub fn mask(is_masked: bool) {
    write32(BAR + TABLE + 12, is_masked.into());
}

/// Whether the first vector's message is pending.
pub fn is_pending() -> bool {
    read32(BAR + 0xC00) & 1 != 0
}

/// Kicks the first queue.
pub fn kick() {
    payload::instruction!("dsb ish");
    write16(at(NOTIFY), 0);
}

pub fn status() -> u32 {
    u32::from(crate::memory::read8(at(STATUS)))
}

pub fn set_status(status: u8) {
    barrier();
    write8(at(STATUS), status);
}

/// A store anywhere in the BAR or in configuration space.
pub fn store_anywhere(random: &mut payload::random::Random) {
    let value = random.odd();
    let place = match random.below(4) {
        0 => SPACE + random.below(0x100),
        _ => BAR + random.below(BAR_SIZE),
    };
    match random.below(3) {
        0 => write8(place, value as u8),
        1 => write16(place & !1, value as u16),
        _ => write32(place & !3, value as u32),
    }
}

/// The size of the first queue.
pub fn queue_size() -> u16 {
    read16(at(QUEUE_SIZE))
}
