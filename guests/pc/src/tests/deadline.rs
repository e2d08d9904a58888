//! The local APIC's timer in TSC-deadline mode. The guest may own the physical timer or not, and that changes while the tests run.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use super::firmware::cpus;
use super::test::check;
use crate::console::println;
use crate::exception::{self, COUNTS};
use crate::lapic::{self as apic, command, register};
use crate::machine::{cli, out8, pace, rdmsr, sti, ticks, wrmsr};
use crate::others::{self, DONE, UP, pass, wait};

const VECTOR: u8 = 0x61;
const OTHER: u8 = 0x62;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DEADLINE: u32 = 2 << 17;

const TSC: u32 = 0x10;
const TSC_ADJUST: u32 = 0x3b;
const TSC_DEADLINE: u32 = 0x6e0;

/// Ticks to a deadline that expires within a test.
fn soon() -> u64 {
    60_000 * pace()
}

/// Ticks to one that does not.
const FAR: u64 = 1 << 40;

/// Time of the last interrupt.
static CAME: AtomicU64 = AtomicU64::new(0);

fn count(vector: u8) -> u64 {
    COUNTS[usize::from(vector)].load(Ordering::SeqCst)
}

fn local(value: u32) {
    apic::write(register::TIMER, value);
}

fn arm(deadline: u64) {
    // SAFETY: the vector that the timer sends has a handler in the IDT, which returns to here.
    unsafe { wrmsr(TSC_DEADLINE, deadline) };
}

fn armed() -> u64 {
    // SAFETY: the register is there on each CPU that this is for.
    unsafe { rdmsr(TSC_DEADLINE) }
}

/// Deadline mode, with nothing armed and no interrupt taken yet.
fn begin() {
    // A count of the PIT's would be a deadline of another device.
    stop_pit();
    apic::enable();
    for vector in [VECTOR, OTHER] {
        exception::handle(
            vector,
            Some(|_| {
                CAME.store(ticks(), Ordering::SeqCst);
                apic::end();
            }),
        );
    }
    local(DEADLINE | u32::from(VECTOR));
    arm(0);
    sti();
}

/// Stops channel 0 of the 8254: in mode 0, it waits for a count.
pub fn stop_pit() {
    // SAFETY: stops channel 0 of the 8254, for which nothing waits in this test.
    unsafe { out8(0x43, 0b0011_0000) };
}

fn finish() {
    cli();
    local(MASKED | u32::from(VECTOR));
}

/// Whether exactly one interrupt is taken after `deadline`, at which the register reads as 0.
fn comes(vector: u8, deadline: u64) -> bool {
    let once = wait(|| count(vector) != 0) && armed() == 0;
    pass(soon());
    once && exception::take(vector) == 1 && CAME.load(Ordering::SeqCst) >= deadline
}

/// Whether no interrupt is taken until well after `deadline`.
fn is_silent(deadline: u64) -> bool {
    wait(|| ticks() > deadline.saturating_add(soon())) && exception::take(VECTOR) == 0 && exception::take(OTHER) == 0
}

pub fn arming(_: u64) -> Result<(), &'static str> {
    begin();
    for _ in 0..20 {
        let deadline = ticks() + soon();
        arm(deadline);
        // Where time is real, it may be over by now.
        let kept = armed() == deadline || ticks() > deadline;
        check!(kept && comes(VECTOR, deadline), "one that is set: it reads otherwise, or does not come once");
    }
    for past in [1, ticks()] {
        arm(past);
        check!(comes(VECTOR, past), "one that is past does not come once");
    }
    let deadline = ticks() + soon();
    arm(deadline);
    arm(0);
    check!(armed() == 0 && is_silent(deadline), "one that was cancelled comes");
    arm(deadline + FAR);
    check!(armed() == deadline + FAR, "one that is far away reads otherwise");
    let nearer = ticks() + soon();
    arm(nearer);
    check!(comes(VECTOR, nearer), "a nearer one does not come once");
    arm(ticks() + soon());
    let later = ticks() + 4 * soon();
    arm(later);
    check!(comes(VECTOR, later), "a later one does not take the place of the first");
    // With interrupts off, an expired deadline stays pending, and the next one can be armed.
    cli();
    let first = ticks() + soon();
    arm(first);
    check!(wait(|| armed() == 0), "it does not expire while interrupts are off");
    let second = ticks() + 4 * soon();
    arm(second);
    sti();
    check!(wait(|| count(VECTOR) == 1) && ticks() < second, "what has expired while interrupts were off is lost");
    check!(wait(|| count(VECTOR) == 2) && exception::take(VECTOR) == 2, "the one behind it is lost");
    let deadline = ticks() + soon();
    arm(deadline);
    // SAFETY: the timer armed before interrupts this wait, and its handler returns to here.
    unsafe { asm!("hlt", options(nostack)) };
    check!(comes(VECTOR, deadline), "it does not wake from HLT");
    finish();
    Ok(())
}

pub fn local_vector(_: u64) -> Result<(), &'static str> {
    begin();
    let deadline = ticks() + soon();
    arm(deadline);
    local(DEADLINE | MASKED | u32::from(VECTOR));
    let silent = is_silent(deadline);
    local(DEADLINE | u32::from(VECTOR));
    check!(silent && is_silent(ticks()), "one that expires while it is masked comes, or later");
    local(DEADLINE | MASKED | u32::from(VECTOR));
    let deadline = ticks() + 4 * soon();
    arm(deadline);
    check!(armed() == deadline, "it can't be armed while it is masked");
    local(DEADLINE | u32::from(VECTOR));
    check!(armed() == deadline && comes(VECTOR, deadline), "one that was armed while masked does not come");
    let deadline = ticks() + 4 * soon();
    arm(deadline);
    local(DEADLINE | u32::from(OTHER));
    check!(armed() == deadline && comes(OTHER, deadline), "a new vector while it is armed is not heeded");
    local(DEADLINE | u32::from(VECTOR));
    for mode in [0, PERIODIC] {
        let deadline = ticks() + soon();
        arm(deadline);
        local(mode | u32::from(VECTOR));
        check!(armed() == 0, "another mode leaves it armed");
        arm(deadline);
        check!(armed() == 0 && is_silent(deadline), "it is armed in another mode");
        local(DEADLINE | u32::from(VECTOR));
        check!(armed() == 0 && is_silent(ticks()), "the mode arms it");
    }
    let deadline = ticks() + soon();
    arm(deadline);
    let spurious = apic::read(register::SPURIOUS);
    apic::write(register::SPURIOUS, spurious & !0x100);
    let silent = is_silent(deadline);
    apic::write(register::SPURIOUS, spurious);
    check!(silent && apic::read(register::TIMER) & MASKED != 0, "it comes while the APIC is off");
    local(DEADLINE | u32::from(VECTOR));
    check!(is_silent(ticks()), "what has expired while the APIC was off comes later");
    finish();
    Ok(())
}

/// A counter that is moved moves deadlines with it.
pub fn counter(_: u64) -> Result<(), &'static str> {
    begin();
    // SAFETY: the counter is this guest's own, and set back at the end.
    let adjust = |by: u64| unsafe { wrmsr(TSC_ADJUST, by) };
    let deadline = ticks() + (1 << 36);
    arm(deadline);
    adjust(1 << 36);
    check!(comes(VECTOR, deadline), "the counter jumps over a deadline");
    let deadline = ticks() + soon();
    arm(deadline);
    check!(armed() == deadline && comes(VECTOR, deadline), "a deadline of a counter that is ahead");
    let deadline = ticks() - (1 << 36) + 4 * soon();
    adjust(0);
    arm(deadline);
    check!(comes(VECTOR, deadline), "a deadline of a counter that is set back");
    // One that expired while it was masked stays expired.
    local(DEADLINE | MASKED | u32::from(VECTOR));
    let deadline = ticks() + soon();
    arm(deadline);
    wait(|| ticks() > deadline + soon());
    adjust(0_u64.wrapping_sub(1 << 24));
    local(DEADLINE | u32::from(VECTOR));
    let silent = is_silent(deadline);
    adjust(0);
    check!(silent, "one that has expired comes again with a counter that is set back");
    let before = ticks();
    // SAFETY: every supported CPU has the counter's register, and no other test relies on its value.
    unsafe { wrmsr(TSC, 1 << 20) };
    let deadline = (1 << 20) + 4 * soon();
    arm(deadline);
    let came = armed() == deadline && comes(VECTOR, deadline);
    adjust(0);
    check!(came && ticks() >= before, "a deadline of a counter that was written");
    finish();
    Ok(())
}

/// A deadline of a CPU that is turned off does not interrupt.
pub fn init(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if others == 0 {
        return Ok(());
    }
    begin();
    finish();
    others::give(|| {
        local(DEADLINE | u32::from(VECTOR));
        arm(ticks() + 40 * soon());
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "the others do nothing");
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up again");
    others::give(|| {
        if armed() != 0 || apic::read(register::TIMER) != MASKED {
            COUNTS[usize::from(OTHER)].fetch_add(1, Ordering::SeqCst);
        }
        sti();
        pass(60 * soon());
        cli();
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do nothing after INIT");
    check!(exception::take(OTHER) == 0, "INIT leaves the timer armed");
    check!(exception::take(VECTOR) == 0, "a deadline from before INIT comes");
    // A separate deadline for each CPU, all concurrent.
    static LATE: AtomicU64 = AtomicU64::new(0);
    LATE.store(0, Ordering::SeqCst);
    exception::handle(VECTOR, None);
    others::give(|| {
        local(DEADLINE | u32::from(VECTOR));
        for _ in 0..20 {
            let deadline = ticks() + soon();
            arm(deadline);
            // SAFETY: the timer ends the wait, if it is not over.
            unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
            LATE.fetch_add(u64::from(ticks() >= deadline && armed() == 0), Ordering::SeqCst);
        }
        local(MASKED);
    });
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they wait for ever");
    check!(LATE.load(Ordering::SeqCst) == 20 * u64::from(others), "one wakes before its time");
    check!(exception::take(VECTOR) == 20 * u64::from(others), "they do not come once each");
    apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up at the end");
    Ok(())
}

/// Sets deadlines for a long time, while another VM uses this CPU intermittently. Returns the number of failures.
pub fn many() -> u32 {
    const ROUNDS: u64 = 600;
    let result = try_many(ROUNDS, ticks());
    match result {
        Ok(()) => println!("{ROUNDS} deadlines: none early, none lost"),
        Err(why) => println!("FAIL deadlines: {why}"),
    }
    u32::from(result.is_err())
}

/// Arms deadlines at random times, and halts until half of them: the other VM has the CPU meanwhile.
fn try_many(rounds: u64, seed: u64) -> Result<(), &'static str> {
    begin();
    let mut draw = seed | 1;
    for round in 0..rounds {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Up to some 1.5 million ticks: a third of a slice.
        let deadline = ticks() + (draw >> 43 & 0x17_ffff);
        match draw >> 61 {
            // Cancelled close to its expiry.
            0 => {
                cli();
                arm(deadline);
                pass(draw >> 33 & 0x3_ffff);
                arm(0);
                sti();
                let came = exception::take(VECTOR);
                pass(soon());
                check!(exception::take(VECTOR) == 0, "one comes after it was cancelled");
                check!(came <= 1, "one comes twice");
                continue;
            }
            // It is armed far away first.
            1 => {
                arm(deadline + FAR);
                check!(armed() == deadline + FAR, "it reads otherwise");
                arm(deadline);
            }
            // Another vector, which is written while it is armed.
            2 => {
                arm(deadline);
                local(DEADLINE | u32::from(VECTOR));
            }
            _ => arm(deadline),
        }
        if round % 2 == 0 {
            cli();
            if count(VECTOR) == 0 {
                // SAFETY: the timer armed before interrupts this wait, and its handler returns to here.
                unsafe { asm!("sti", "hlt", options(nostack)) };
            }
            sti();
            check!(count(VECTOR) == 1, "HLT ends by something else");
        }
        check!(wait(|| count(VECTOR) != 0), "one is lost");
        check!(CAME.load(Ordering::SeqCst) >= deadline, "one comes early");
        check!(exception::take(VECTOR) == 1 && armed() == 0, "one comes twice, or stays armed");
    }
    finish();
    Ok(())
}

/// The other CPUs sleep without a deadline, and are woken again and again to work for a while: a vCPU of another VM
/// beside one of them has its CPU for itself in between.
pub fn migrate_repeatedly() {
    const TIMES: u64 = 400;
    const WORK: u64 = 150_000;
    const WAKE: u8 = 0x63;
    apic::enable();
    exception::handle(WAKE, None);
    others::start();
    others::give(|| {
        while count(WAKE) < TIMES {
            // SAFETY: the first CPU sends the next interrupt soon.
            unsafe { asm!("sti", "hlt", options(nostack)) };
            pass(WORK);
        }
    });
    let mut draw = ticks() | 1;
    while DONE.load(Ordering::SeqCst) == 0 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        pass(WORK + (draw >> 44 & 0xf_ffff));
        apic::send(0, command::OTHERS | command::ASSERT | u32::from(WAKE));
    }
    println!("came and went {} times", count(WAKE));
}
