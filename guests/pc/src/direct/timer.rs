//! A timer whose expiry is a notification (`timer = "direct"`): the guest requests the timer's vector in its descriptor whenever it arms the
//! timer, and finds by the counter whether an interrupt of the timer is early.

use core::sync::atomic::{AtomicU64, Ordering};

use pc::exception::{self, catch};
use pc::gate::{CONTROL, SENDS};
use pc::lapic::{self as apic, register};
use pc::machine::{cli, sti, ticks, wrmsr};
use pc::others::{self, DONE, UP, pass, wait};

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

/// Requests the timer's vector in this CPU's descriptor.
fn request() {
    descriptor(apic::id()).requests[usize::from(VECTOR >> 5)].fetch_or(1 << (VECTOR & 31), Ordering::SeqCst);
}

fn is_requested() -> bool {
    descriptor(apic::id()).requests[usize::from(VECTOR >> 5)].load(Ordering::SeqCst) >> (VECTOR & 31) & 1 != 0
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

/// Of a CPU that another one wakes before it waits itself. If both share a physical CPU, the second one gets it by the first one's wait, and
/// its own wait exits: the timer, which nobody else needs then, expires while the physical CPU is idle.
pub fn fires_in_turn() -> Result<(), &'static str> {
    /// Wakes the second CPU, which answers with [`OTHER`].
    const ORDER: u8 = 0x76;
    if !is_offered() || UP.load(Ordering::SeqCst) == 0 {
        return Ok(());
    }
    enable();
    prepare();
    finish();
    exception::handle(ORDER, None);
    others::give(|| {
        if apic::id() != 1 {
            return;
        }
        enable();
        set_control(SENDS | TIMER);
        apic::write(register::TIMER, BY_DEADLINE | u32::from(VECTOR));
        for round in 1..=ROUNDS {
            halt_until(|| count(ORDER) == round);
            arm(ticks() + AHEAD);
            halt_until(|| fired() == round);
            send(0, OTHER);
        }
        finish();
        set_control(SENDS);
        sti();
    });
    for round in 1..=ROUNDS {
        send(1, ORDER);
        halt_until(|| count(OTHER) == round);
    }
    if wait(|| DONE.load(Ordering::SeqCst) == UP.load(Ordering::SeqCst)) { Ok(()) } else { Err("they do not end") }
}

/// Deadlines of a counter that is moved while they are armed: none is lost, and none is early by the counter as it is then.
pub fn moves_with_the_counter() -> Result<(), &'static str> {
    const TSC_ADJUST: u32 = 0x3b;
    const JUMP: u64 = 1 << 36;
    if !is_offered() {
        return Ok(());
    }
    // SAFETY: the counter is this guest's own, and set back at the end.
    let adjust = |by: u64| unsafe { wrmsr(TSC_ADJUST, by) };
    enable();
    set_control(SENDS | TIMER);
    prepare();
    sti();
    for round in 0..ROUNDS / 10 {
        // The counter jumps over one.
        arm(ticks() + JUMP);
        adjust(JUMP);
        let jumped = wait(|| fired() == 3 * round + 1);
        // One of a counter that is ahead; others' notifications come before it.
        arm(ticks() + AHEAD);
        send(0, OTHER);
        let ahead = wait(|| fired() == 3 * round + 2);
        // The counter goes back.
        let later = ticks() + 2 * AHEAD;
        arm(later);
        adjust(JUMP - AHEAD);
        let back = wait(|| fired() == 3 * round + 3) && ticks() >= later;
        adjust(0);
        if !(jumped && ahead && back) {
            finish();
            return Err("one is lost, or early");
        }
    }
    finish();
    set_control(SENDS);
    Ok(())
}

/// A timer changes hands at any moment, also while it expires: each deadline interrupts, once by the guest's count.
pub fn changes_hands_at_expiry() -> Result<(), &'static str> {
    if !is_offered() {
        return Ok(());
    }
    enable();
    prepare();
    sti();
    let mut seed = ticks() | 1;
    for round in 1..=ROUNDS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        arm(ticks() + (seed >> 51));
        for turn in 0..4 {
            set_control(if turn % 2 == 0 { SENDS | TIMER } else { SENDS });
        }
        if !wait(|| fired() == round) {
            finish();
            return Err("one is lost");
        }
    }
    finish();
    Ok(())
}

/// An expiry waits while the task priority, or the local entry's mask, holds it back; a masked one is lost, as ever.
pub fn is_held_back() -> Result<(), &'static str> {
    const HIGHEST: u32 = 0xf0;
    if !is_offered() {
        return Ok(());
    }
    enable();
    set_control(SENDS | TIMER);
    prepare();
    sti();
    apic::write(register::TPR, HIGHEST);
    arm(ticks() + AHEAD);
    pass(4 * AHEAD);
    let held = fired() == 0;
    apic::write(register::TPR, 0);
    let taken = wait(|| fired() == 1);
    arm(ticks() + AHEAD);
    apic::write(register::TIMER, MASKED | BY_DEADLINE | u32::from(VECTOR));
    pass(4 * AHEAD);
    let masked = fired() == 1;
    apic::write(register::TIMER, BY_DEADLINE | u32::from(VECTOR));
    pass(4 * AHEAD);
    let lost = fired() == 1;
    arm(ticks() + AHEAD);
    let next = wait(|| fired() == 2);
    finish();
    set_control(SENDS);
    match (held && taken, masked && lost, next) {
        (false, ..) => Err("the priority does not hold it back, or it is lost"),
        (_, false, _) => Err("a masked one comes"),
        (.., false) => Err("the one after a masked one is lost"),
        _ => Ok(()),
    }
}

/// INIT ends the timer of a CPU, and all that it has requested.
pub fn ends_by_init() -> Result<(), &'static str> {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let expected = UP.load(Ordering::SeqCst);
    if !is_offered() || expected == 0 {
        return Ok(());
    }
    prepare();
    finish();
    // INIT is sent by the virtual ICR.
    set_control(0);
    LEFT.store(0, Ordering::SeqCst);
    others::give(|| {
        enable();
        set_control(SENDS | TIMER);
        apic::write(register::TIMER, BY_DEADLINE | u32::from(VECTOR));
        request();
        set_deadline(ticks() + 100 * AHEAD);
    });
    if !wait(|| DONE.load(Ordering::SeqCst) == expected) {
        return Err("they do nothing");
    }
    others::forget();
    others::start();
    if !wait(|| UP.load(Ordering::SeqCst) == expected) {
        return Err("they do not come up again");
    }
    others::give(|| {
        LEFT.fetch_add(u64::from(control() & (SENDS | TIMER) != 0 || is_requested()), Ordering::SeqCst);
        enable();
        apic::write(register::TIMER, BY_DEADLINE | u32::from(VECTOR));
        sti();
        pass(200 * AHEAD);
        cli();
    });
    let done = wait(|| DONE.load(Ordering::SeqCst) == expected);
    match (done, LEFT.load(Ordering::SeqCst), count(VECTOR)) {
        (false, ..) => Err("they do nothing after INIT"),
        (_, 0, 0) => Ok(()),
        (_, 0, _) => Err("one comes that was armed before INIT"),
        _ => Err("something is left"),
    }
}
