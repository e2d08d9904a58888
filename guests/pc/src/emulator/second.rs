//! A second vCPU writes the code that the first one executes. Without a second vCPU, these tests do nothing.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::code::{LOAD, LOAD_BYTE, VERSION, VERSION_IS, put, run};
use super::tables::{APIC, PAGE, WINDOW, frame};
use crate::others;
use crate::tests::firmware;
use crate::tests::test::check;

/// The opcode that the second vCPU must write into frame 3; [`NOTHING`], or both alternately.
static WANTED: AtomicU64 = AtomicU64::new(NOTHING);
const NOTHING: u64 = 0;
const BOTH: u64 = 1;
/// Its last action; initially none.
static DONE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The function of the other vCPUs: one of them executes it, forever.
fn write_code() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return;
    }
    let opcode = frame(3) as *mut u8;
    let mut done = u64::MAX;
    let mut turn = false;
    loop {
        let wanted = WANTED.load(Ordering::Acquire);
        if wanted == BOTH {
            turn = !turn;
            // SAFETY: only this writes the byte of code.
            unsafe { opcode.write_volatile(if turn { LOAD[0] } else { LOAD_BYTE[0] }) };
        } else if wanted != done && wanted != NOTHING {
            // SAFETY: only this writes the byte of code.
            unsafe { opcode.write_volatile(wanted as u8) };
        }
        done = wanted;
        DONE.store(done, Ordering::Release);
        core::hint::spin_loop();
    }
}

/// Starts the second vCPU. Returns whether there is one.
fn start() -> bool {
    if DONE.load(Ordering::Relaxed) != u64::MAX {
        return true;
    }
    if firmware::cpus() == 1 {
        return false;
    }
    others::give(write_code);
    others::start();
    let there = others::wait(|| DONE.load(Ordering::Acquire) == NOTHING);
    others::forget();
    there
}

/// Waits until the second vCPU has performed an action.
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
    let code = WINDOW + 3 * PAGE;
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
    let code = WINDOW + 3 * PAGE;
    check!(want(BOTH), "the other vCPU does not answer");
    for _ in 0..300 {
        let value = run(code, APIC + VERSION, u64::MAX);
        check!(value == VERSION_IS || value == !0xff | 0x14, "neither of both instructions ran");
    }
    check!(want(LOAD[0].into()), "the other vCPU does not answer");
    check!(run(code, APIC + VERSION, u64::MAX) == VERSION_IS, "the last one written did not run");
    Ok(())
}
