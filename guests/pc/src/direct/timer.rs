//! A timer whose expiry is a notification (`timer = "direct"`): the guest requests the timer's vector in its descriptor whenever it arms the
//! timer, and finds by the counter whether an interrupt of the timer is early.

use core::sync::atomic::{AtomicU64, Ordering};

use pc::exception::{self, catch};
use pc::gate::{CONTROL, SENDS};
use pc::lapic::{self as apic, register};
use pc::machine::{cli, sti, ticks, wrmsr};
use pc::others::{pass, wait};

use crate::sending::{control, count, descriptor, enable, halt_until, send, set_control};

/// In CPUID and in the register.
const FEATURE: u32 = 1 << 2;
const TIMER: u64 = 1 << 1;

const TSC_DEADLINE: u32 = 0x6e0;
/// The local entry's mode.
const BY_DEADLINE: u32 = 2 << 17;
const MASKED: u32 = 1 << 16;

const VECTOR: u8 = 0xec;
/// Of other interrupts.
const OTHER: u8 = 0x75;
const ROUNDS: u64 = 200;
/// Ticks to a deadline.
const AHEAD: u64 = 30_000;

/// The deadline that is armed, or 0.
static DEADLINE: AtomicU64 = AtomicU64::new(0);
static FIRED: AtomicU64 = AtomicU64::new(0);
static EARLY: AtomicU64 = AtomicU64::new(0);

/// Whether the VM has such timers.
fn is_offered() -> bool {
    core::arch::x86_64::__cpuid(pc::gate::FEATURES).eax & FEATURE != 0
}

/// Requests the timer's vector in this CPU's descriptor, the first one.
fn request() {
    descriptor(0).requests[usize::from(VECTOR >> 5)].fetch_or(1 << (VECTOR & 31), Ordering::SeqCst);
}

fn is_requested() -> bool {
    descriptor(0).requests[usize::from(VECTOR >> 5)].load(Ordering::SeqCst) >> (VECTOR & 31) & 1 != 0
}

fn arm(deadline: u64) {
    DEADLINE.store(deadline, Ordering::SeqCst);
    request();
    set_deadline(deadline);
}

fn set_deadline(deadline: u64) {
    // SAFETY: the CPU has the register, and the timer's interrupt a handler.
    unsafe { wrmsr(TSC_DEADLINE, deadline) };
}

fn interrupt(_: u64) {
    apic::end();
    let deadline = DEADLINE.load(Ordering::SeqCst);
    if deadline == 0 {
        return;
    }
    if ticks() < deadline {
        EARLY.fetch_add(1, Ordering::SeqCst);
        request();
        // An expiry before the request has notified of nothing.
        if ticks() < deadline {
            return;
        }
    }
    DEADLINE.store(0, Ordering::SeqCst);
    FIRED.fetch_add(1, Ordering::SeqCst);
}

fn prepare() {
    exception::handle(VECTOR, Some(interrupt));
    exception::handle(OTHER, None);
    FIRED.store(0, Ordering::SeqCst);
    EARLY.store(0, Ordering::SeqCst);
    DEADLINE.store(0, Ordering::SeqCst);
    apic::write(register::TIMER, BY_DEADLINE | u32::from(VECTOR));
}

fn finish() {
    cli();
    set_deadline(0);
    apic::write(register::TIMER, MASKED);
}

fn fired() -> u64 {
    FIRED.load(Ordering::SeqCst)
}

/// Each deadline fires once: one that this CPU spins for, one that it waits for by HLT, one in the past, one that is moved; and one with
/// other notifications before it.
pub fn fires() -> Result<(), &'static str> {
    if !is_offered() {
        let refused = catch!("wrmsr", "ecx" = CONTROL, "eax" = (SENDS | TIMER) as u32, "edx" = 0).is_some_and(|(vector, _)| vector == 13);
        return if refused { Ok(()) } else { Err("it is not refused") };
    }
    enable();
    set_control(SENDS | TIMER);
    if control() & (SENDS | TIMER) != SENDS | TIMER {
        return Err("the register does not tell of it");
    }
    prepare();
    let whole = (1..=ROUNDS).all(|round| {
        sti();
        match round % 5 {
            0 => arm(ticks() + AHEAD),
            1 => {
                arm(ticks() + AHEAD);
                halt_until(|| fired() == round);
                sti();
            }
            2 => arm(1),
            3 => {
                arm(ticks() + 100 * AHEAD);
                arm(ticks() + AHEAD);
            }
            _ => {
                arm(ticks() + AHEAD);
                send(0, OTHER);
            }
        }
        wait(|| fired() == round)
    });
    // The last one is not followed by a second interrupt.
    pass(4 * AHEAD);
    let (fired, others) = (fired(), count(OTHER));
    finish();
    match (whole && fired == ROUNDS, others == ROUNDS / 5, EARLY.load(Ordering::SeqCst) != 0) {
        (false, ..) => Err("one is lost, or comes twice"),
        (_, false, _) => Err("another interrupt is lost"),
        (.., false) => Err("none is early, which means that a notification does not deliver all that is requested"),
        _ => Ok(()),
    }
}

/// A timer that is armed when the guest gives the notifications up fires as any other, not earlier: no request of its vector is left. One
/// that is armed when it asks for them needs no request of the guest's.
pub fn changes_hands() -> Result<(), &'static str> {
    if !is_offered() {
        return Ok(());
    }
    enable();
    prepare();
    let mut result = Ok(());
    for round in 1..=ROUNDS {
        let by_request = round % 2 == 0;
        set_control(if by_request { SENDS | TIMER } else { SENDS });
        let deadline = ticks() + AHEAD;
        if by_request {
            arm(deadline);
        } else {
            DEADLINE.store(deadline, Ordering::SeqCst);
            set_deadline(deadline);
        }
        set_control(if by_request { SENDS } else { SENDS | TIMER });
        if by_request && is_requested() && ticks() < deadline {
            result = Err("its request is left");
        }
        sti();
        if by_request {
            send(0, OTHER);
        }
        if !wait(|| fired() == round) {
            result = Err("one is lost");
        }
        cli();
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() && EARLY.load(Ordering::SeqCst) != 0 {
        result = Err("one is early, although the guest has given the notifications up");
    }
    finish();
    set_control(SENDS);
    result
}

/// Software disable of the APIC ends it: the next timer exits, and is not early.
pub fn ends_with_the_apic() -> Result<(), &'static str> {
    if !is_offered() {
        return Ok(());
    }
    enable();
    set_control(SENDS | TIMER);
    prepare();
    arm(ticks() + 10 * AHEAD);
    apic::write(register::SPURIOUS, 0xff);
    let left = control() & (SENDS | TIMER) != 0 || is_requested();
    enable();
    prepare();
    let deadline = ticks() + AHEAD;
    DEADLINE.store(deadline, Ordering::SeqCst);
    set_deadline(deadline);
    sti();
    send(0, OTHER);
    let came = wait(|| fired() == 1);
    let early = EARLY.load(Ordering::SeqCst) != 0;
    finish();
    match (left, came, early) {
        (true, ..) => Err("something is left"),
        (_, false, _) => Err("the next one is lost"),
        (.., true) => Err("the next one is early"),
        _ => Ok(()),
    }
}
