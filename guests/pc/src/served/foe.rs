//! A hostile server. Its client is hostile, too: neither relies on the other.

use common::fail::Outcome;
use common::random::Random;
use common::{check, check_eq};
use pc::exception::catch;

use crate::memory::{self, read32, read64, write32, write64};
use crate::server::{BASE, EVENTS, map};

/// Behind this machine's RAM and devices; the client has as much RAM as this machine.
const WINDOW: u64 = 4 << 30;
const SIZE: u64 = 64 << 20;
/// A port without a device.
const PORT: u16 = 0xe0;
/// Vector and error code of #UD.
const INVALID_OPCODE: (u64, u64) = (6, 0);

/// Any registers, the ends of the window, and all of it, while the client resets.
pub fn attack() -> Outcome {
    let mut random = Random::new(4);
    for _ in 0..5_000 {
        // Any numbers of events, seen or not, among them those that a client's next kick or reset makes the last.
        let value = if random.below(2) == 0 { random.below(64) as u32 } else { random.odd() as u32 };
        write32(EVENTS + 4 * random.below(0x400), value);
        write32(EVENTS + 0x80, value);
        // Also of devices that it does not serve.
        let register = BASE + 0x1000 * random.below(8) + 4 * random.below(0x90);
        match random.below(3) {
            0 => drop(read32(register)),
            1 => write32(register, 1),
            _ => write32(register, random.odd() as u32),
        }
    }
    // All of the GiB, of which the window is a part.
    map(0, WINDOW, 1 << 30);
    for address in [EVENTS + 0x1000, EVENTS + 0x7ff8, WINDOW + SIZE, WINDOW + (1 << 30) - 8] {
        write64(address, 0);
        check_eq!(read64(address), u64::MAX, "a load of {address:#x}, where nothing is");
    }
    for _ in 0..4 {
        (0..SIZE).step_by(4096).for_each(|page| _ = read64(WINDOW + page));
    }
    check!(read64(WINDOW + memory::page(0)) != u64::MAX, "the client's RAM is not there");
    // Instructions that Stile emulates have no operand there.
    for address in [WINDOW + memory::page(0), EVENTS] {
        check!(catch!("outsb", "rsi" = address, "dx" = PORT) == Some(INVALID_OPCODE), "OUTSB from {address:#x}");
        check!(catch!("insb", "rdi" = address, "dx" = PORT) == Some(INVALID_OPCODE), "INSB to {address:#x}");
    }
    check!(catch!("outsb", "rsi" = memory::page(0), "dx" = PORT).is_none(), "OUTSB from this machine's RAM");
    Ok(())
}
