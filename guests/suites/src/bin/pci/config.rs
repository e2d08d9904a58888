//! Configuration space, and the BAR.

use payload::harness::Test;
use payload::prelude::*;
use payload::uart::Reg32;

use crate::edu::{self, BAR, BAR_SIZE, MASTER, MEMORY};

pub const TESTS: &[Test] = payload::tests![others_are_absent, identity_is_constant, bar_is_sized, bar_moves, decoding_ends, small_accesses];

/// Value of registers of absent functions.
pub const ABSENT: u32 = 0xFFFF_FFFF;

fn others_are_absent() -> Outcome {
    for device in (0..32).filter(|&device| device != 1) {
        check_eq!(edu::config(device, 0).read(), ABSENT, "device {device}");
    }
    for function in 1..8u64 {
        check_eq!(Reg32(edu::ECAM + (1 << 15) + (function << 12)).read(), ABSENT, "function {function}");
    }
    edu::config(5, 4).write(7);
    Ok(())
}

fn identity_is_constant() -> Outcome {
    check_eq!(edu::own_config(0).read(), edu::ID, "vendor and device");
    for offset in [0, 8, 0x2C, 0x34, 0x38, 0x40, 0xFC, 0x100, 0xFFC] {
        let before = edu::own_config(offset).read();
        edu::own_config(offset).write(!before);
        check_eq!(edu::own_config(offset).read(), before, "offset {offset:#x}");
    }
    check_eq!(edu::own_config(0xC).read() >> 16 & 0xFF, 0, "header type");
    check_eq!(edu::own_config(0x3C).read() >> 8 & 0xFF, 0, "interrupt pin");
    check_eq!(edu::own_config(4).read() & 0xFFFF, MEMORY | MASTER, "command");
    Ok(())
}

fn bar_is_sized() -> Outcome {
    edu::own_config(0x10).write(u32::MAX);
    check_eq!(edu::own_config(0x10).read(), !(BAR_SIZE as u32 - 1), "BAR 0");
    for bar in 1..6 {
        edu::own_config(0x10 + 4 * bar).write(u32::MAX);
        check_eq!(edu::own_config(0x10 + 4 * bar).read(), 0, "BAR {bar}");
    }
    Ok(())
}

fn bar_moves() -> Outcome {
    check_eq!(edu::register(0).read() & 0xFF00_FFFF, edu::IDENTIFICATION, "identification");
    // It answers with the complement.
    edu::register(4).write(0x1234_5678);
    check_eq!(edu::register(4).read(), !0x1234_5678, "complement");
    for place in [edu::WINDOW, BAR + BAR_SIZE, 0x3EE0_0000] {
        edu::own_config(0x10).write(place as u32);
        check_eq!(Reg32(place + 4).read(), !0x1234_5678, "at {place:#x}");
        check_eq!(edu::register(0).read(), ABSENT, "where it was");
    }
    // Outside of the window: what is there stays.
    for place in [0, 0x0800_0000, 0x0900_0000, 0x3F00_0000, 0x4000_0000, 0xFFF0_0000u32] {
        edu::own_config(0x10).write(place);
        check_eq!(edu::own_config(0).read(), edu::ID, "with the BAR at {place:#x}");
        check_eq!(edu::register(0).read(), ABSENT, "with the BAR at {place:#x}");
    }
    Ok(())
}

/// Also often: the tables that map the BAR must not accumulate.
fn decoding_ends() -> Outcome {
    for _ in 0..1000 {
        edu::own_config(4).write(MASTER);
        check_eq!(edu::register(4).read(), ABSENT, "decoding is off");
        edu::register(4).write(0);
        edu::own_config(4).write(MEMORY);
        check_eq!(edu::register(0).read() & 0xFF00_FFFF, edu::IDENTIFICATION, "decoding is on");
    }
    Ok(())
}

fn small_accesses() -> Outcome {
    let (half, byte): (u32, u32);
    // SAFETY: configuration space is device memory; loads change nothing.
    unsafe {
        core::arch::asm!("ldrh {:w}, [{}]", out(reg) half, in(reg) edu::own_config(2).0, options(nostack, preserves_flags));
        core::arch::asm!("ldrb {:w}, [{}]", out(reg) byte, in(reg) edu::own_config(1).0, options(nostack, preserves_flags));
    }
    check_eq!(half, edu::ID >> 16, "device");
    check_eq!(byte, edu::ID >> 8 & 0xFF, "second byte of the vendor");
    Ok(())
}
