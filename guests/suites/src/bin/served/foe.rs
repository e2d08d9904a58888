//! A hostile server. Its client is hostile, too: nobody relies on what it does.

use payload::exception;
use payload::harness::Test;
use payload::mmu::{self, Memory};
use payload::prelude::*;
use payload::random::Random;
use payload::uart::Reg32;

use crate::memory::{read64, write32, write64};

pub const TESTS: &[Test] = payload::tests![any_registers, windows_end, all_of_a_window];

const BASE: u64 = 0x0A01_0000;
/// Events of its only device.
const EVENTS: u64 = 0x0701_0000;
/// Behind this machine's RAM of less than a GiB; the client has as much.
const WINDOW: u64 = 0x8000_0000;

fn any_registers() -> Outcome {
    let mut random = Random::new(machine::number("seed", 4));
    let events = mmu::window(EVENTS, Memory::Normal, false);
    for _ in 0..20_000 {
        // Any numbers of events, seen or not, among them those that a client's next kick or reset makes the last.
        let value = if random.below(2) == 0 { random.below(64) as u32 } else { random.odd() as u32 };
        write32(events + 4 * random.below(0x400), value);
        write32(events + 0x80, value);
        // Also of devices that it does not serve.
        let register = Reg32(BASE + 0x1000 * random.below(8) + 4 * random.below(0x90));
        match random.below(3) {
            0 => drop(register.read()),
            1 => register.write(1),
            _ => register.write(random.odd() as u32),
        }
    }
    Ok(())
}

fn is_refused(address: u64) -> Outcome {
    let fault = exception::catch(|| {
        let _ = read64(address);
    });
    check!(fault.is_some_and(|fault| fault.is_external_abort()), "a load of {address:#x} is answered");
    let fault = exception::catch(|| write64(address, 0));
    check!(fault.is_some_and(|fault| fault.is_external_abort()), "a store to {address:#x} is accepted");
    Ok(())
}

fn windows_end() -> Outcome {
    let ram = machine::ram();
    let end = WINDOW + (ram.end - ram.start);
    for address in
        [EVENTS - 8, EVENTS + 0x1000, EVENTS + 0x7ff8, ram.end, WINDOW - 8, end, WINDOW + (1 << 30), 0x1_0000_0000, 0x1_FFFF_FFF8]
    {
        is_refused(address)?;
    }
    Ok(())
}

/// Touches every page, which fills the client's RAM, while it runs and resets.
fn all_of_a_window() -> Outcome {
    let ram = machine::ram();
    for _ in 0..4 {
        // The client's code is at the start: what is there may change at any time, but is not changed here.
        for page in (0..ram.end - ram.start).step_by(4096) {
            let _ = read64(WINDOW + page);
        }
    }
    Ok(())
}
