//! Memory that a queue's two sides share, and places in this machine's RAM that a reset keeps.

use core::sync::atomic::{Ordering, fence};

use pc::machine;

/// Pages that nothing else uses.
const PAGES: u64 = 48 << 20;
const MARK: u32 = 0x5e4e_d0b1;

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        pub fn $read(address: u64) -> $type {
            // SAFETY: a device's register, or RAM without Rust objects, which another machine may change.
            unsafe { (address as *const $type).read_volatile() }
        }

        pub fn $write(address: u64, value: $type) {
            // SAFETY: a device's register, or RAM without Rust objects, which another machine may read.
            unsafe { (address as *mut $type).write_volatile(value) };
        }
    };
}

access!(read8, write8, u8);
access!(read16, write16, u16);
access!(read32, write32, u32);
access!(read64, write64, u64);

/// Orders accesses before it and after it.
pub fn barrier() {
    fence(Ordering::SeqCst);
}

/// The `number`th of some pages, which nothing else uses and no reset changes.
pub fn page(number: u64) -> u64 {
    PAGES + number * 4096
}

/// Whether the machine was reset after [`mark`].
pub fn second_boot() -> bool {
    let marked = read32(page(0)) == MARK;
    write32(page(0), 0);
    marked
}

/// Makes [`second_boot`] true after the next reset.
pub fn mark() {
    write32(page(0), MARK);
}

/// Resets the machine.
pub fn reset() -> ! {
    const KEYBOARD: u16 = 0x64;
    const RESET: u8 = 0xfe;
    // SAFETY: the 8042 resets the machine, which this test expects: nothing after it is needed.
    unsafe { machine::out8(KEYBOARD, RESET) };
    loop {
        core::hint::spin_loop();
    }
}

/// Addresses in a queue at its base.
pub mod place {
    pub const AVAILABLE: u64 = 0x400;
    pub const USED: u64 = 0x800;
    pub const HEADER: u64 = 0x1000;
    pub const DATA: u64 = 0x1200;
    pub const STATUS: u64 = 0x1400;
}

/// Flags of descriptors: another follows; the device writes it.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;

/// Writes a descriptor of the queue at `base`.
pub fn describe(base: u64, index: u64, address: u64, length: u32, flags: u16, next: u16) {
    let at = base + 16 * index;
    write64(at, address);
    write32(at + 8, length);
    write16(at + 12, flags);
    write16(at + 14, next);
}
