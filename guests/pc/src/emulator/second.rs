//! A second vCPU that writes the code that the first one runs. Without one, these tests have nothing to do.

use core::sync::atomic::{AtomicU64, Ordering};

use super::tables::{APIC, WINDOW, frame};
use super::{LOAD, LOAD_BYTE, VERSION, VERSION_IS, put, run};
use crate::tests::check;

/// Where the second vCPU starts: a page below 1 MiB.
const START: u64 = 0x8000;
const ICR: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;

unsafe extern "C" {
    static second_start: u8;
    static second_end: u8;
}

/// What the second vCPU is to write into frame 3: the opcode; [`NOTHING`], or both in turn.
static WANTED: AtomicU64 = AtomicU64::new(NOTHING);
const NOTHING: u64 = 0;
const BOTH: u64 = 1;
/// What it has done last: it is there if it has done anything.
static DONE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The second vCPU's program.
#[unsafe(no_mangle)]
extern "C" fn second_main() -> ! {
    let opcode = frame(3) as *mut u8;
    let mut done = u64::MAX;
    let mut turn = false;
    loop {
        let wanted = WANTED.load(Ordering::Acquire);
        if wanted == BOTH {
            turn = !turn;
            // SAFETY: a byte of code that only this writes, meanwhile.
            unsafe { opcode.write_volatile(if turn { LOAD[0] } else { LOAD_BYTE[0] }) };
        } else if wanted != done && wanted != NOTHING {
            // SAFETY: as above.
            unsafe { opcode.write_volatile(wanted as u8) };
        }
        done = wanted;
        DONE.store(done, Ordering::Release);
        core::hint::spin_loop();
    }
}

/// Starts it, if there is one. Returns whether it is there.
fn start() -> bool {
    if DONE.load(Ordering::Relaxed) != u64::MAX {
        return true;
    }
    let (from, to) = (&raw const second_start as u64, &raw const second_end as u64);
    // SAFETY: the page is memory that nothing else uses; registers of the local APIC are written as the boot protocol has them.
    unsafe {
        (START as *mut u8).copy_from_nonoverlapping(from as *const u8, (to - from) as usize);
        let write = |offset: u64, value: u32| ((APIC + offset) as *mut u32).write_volatile(value);
        write(ICR_HIGH, 1 << 24);
        write(ICR, 0x4500);
        write(ICR_HIGH, 1 << 24);
        write(ICR, 0x4600 | (START >> 12) as u32);
    }
    wait_for(NOTHING)
}

/// Waits until the second vCPU has done something.
fn wait_for(what: u64) -> bool {
    (0..20_000_000).any(|_| {
        core::hint::spin_loop();
        DONE.load(Ordering::Acquire) == what
    })
}

fn want(what: u64) -> bool {
    WANTED.store(what, Ordering::Release);
    wait_for(what)
}

pub fn written_by_another_vcpu(_: u64) -> Result<(), &'static str> {
    if !start() {
        return Ok(());
    }
    put(3, 0, &LOAD);
    let code = WINDOW + 3 * super::PAGE;
    for _ in 0..8 {
        for (opcode, expected) in [(LOAD_BYTE[0], !0xff | 0x14), (LOAD[0], VERSION_IS)] {
            check!(want(opcode.into()), "the other vCPU does not answer");
            for _ in 0..2 {
                check!(run(code, APIC + VERSION, u64::MAX) == expected, "the instruction as it was before ran");
            }
        }
    }
    Ok(())
}

pub fn written_while_it_runs(_: u64) -> Result<(), &'static str> {
    if !start() {
        return Ok(());
    }
    put(3, 0, &LOAD);
    let code = WINDOW + 3 * super::PAGE;
    check!(want(BOTH), "the other vCPU does not answer");
    for _ in 0..300 {
        let value = run(code, APIC + VERSION, u64::MAX);
        check!(value == VERSION_IS || value == !0xff | 0x14, "neither of both instructions ran");
    }
    check!(want(LOAD[0].into()), "the other vCPU does not answer");
    check!(run(code, APIC + VERSION, u64::MAX) == VERSION_IS, "the last one written did not run");
    Ok(())
}
