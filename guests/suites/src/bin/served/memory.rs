//! Memory that a queue's two sides share, and places in this machine's RAM that a reset keeps.

use payload::gic::Bits;
use payload::prelude::*;
use payload::timer::{self, Timer};

const MARK: u32 = 0x5E4E_D0B1;

macro_rules! access {
    ($read:ident, $write:ident, $type:ty, $load:literal, $store:literal) => {
        pub fn $read(address: u64) -> $type {
            let value: u64;
            // SAFETY: RAM without Rust objects, which another machine may change.
            unsafe { core::arch::asm!(concat!($load, ", [{}]"), out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
            value as $type
        }

        #[allow(dead_code)]
        pub fn $write(address: u64, value: $type) {
            // SAFETY: RAM without Rust objects, which another machine may read.
            unsafe { core::arch::asm!(concat!($store, ", [{}]"), in(reg) u64::from(value), in(reg) address, options(nostack, preserves_flags)) };
        }
    };
}

access!(read8, write8, u8, "ldrb {:w}", "strb {:w}");
access!(read16, write16, u16, "ldrh {:w}", "strh {:w}");
access!(read32, write32, u32, "ldr {:w}", "str {:w}");
access!(read64, write64, u64, "ldr {:x}", "str {:x}");

/// Orders accesses before it and after it.
pub fn barrier() {
    payload::instruction!("dmb ish");
}

/// Sleeps for a second, or until an interrupt is pending.
pub fn sleep_a_second() {
    gic::set(Bits::Enable, Timer::Virtual.intid());
    Timer::Virtual.set_deadline(wait::now() + wait::frequency());
    Timer::Virtual.set_control(timer::ENABLE);
    payload::instruction!("wfi");
    Timer::Virtual.set_control(0);
    irq::take();
}

/// Sleeps for this number of seconds, also if an interrupt ends a wait early.
pub fn sleep(seconds: u64) {
    let end = wait::now() + seconds * wait::frequency();
    while wait::now() < end {
        sleep_a_second();
    }
}

/// The `number`th of some pages, which nothing else uses and no reset changes.
pub fn page(number: u64) -> u64 {
    (machine::free_ram().end & !4095) - (number + 1) * 4096
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

/// Addresses in a queue at `base`.
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
