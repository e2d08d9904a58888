//! The second CPU: it plays the part that the first one gives it.

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::platform::Platform;
use super::sysreg::{instruction, mrs};
use super::{cpu, gic, psci};

/// What the second CPU does.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Role {
    /// Nothing yet.
    None,
    /// Runs, and takes interrupts.
    Spin,
    /// Waits for interrupts, and takes them.
    Sleep,
    /// Waits for interrupts with interrupts masked, and notes when it is woken.
    Wake,
    /// Waits for an SGI with interrupts masked, and sends one back.
    Return,
    /// Waits for an SGI, takes it, and sends one back.
    Reply,
}

const ROLES: [Role; 6] = [Role::None, Role::Spin, Role::Sleep, Role::Wake, Role::Return, Role::Reply];

/// The part that it is to play.
static WANTED: AtomicU64 = AtomicU64::new(Role::None as u64);
/// The part that it knows it is to play. It has left the last one.
static SEEN: AtomicU64 = AtomicU64::new(u64::MAX);
/// The part that it may begin with: the SGI that took it out of the last one has arrived.
static ALLOWED: AtomicU64 = AtomicU64::new(Role::None as u64);
/// The part that it plays.
static PLAYED: AtomicU64 = AtomicU64::new(u64::MAX);

static WAKES: AtomicU64 = AtomicU64::new(0);
static WOKEN_AT: AtomicU64 = AtomicU64::new(0);

/// Microseconds in which an SGI has arrived.
const ARRIVAL: u64 = 100;

const TO_FIRST: u64 = gic::sgi_to(gic::REPLY, 0);

/// Turns the second CPU on.
pub fn start(platform: &Platform) -> bool {
    let started = psci::start_second(platform);
    if started {
        wait_for(&PLAYED, Role::None);
    }
    started
}

/// Lets the second CPU play a part, and returns when it does.
pub fn play(role: Role) {
    if WANTED.load(Acquire) == role as u64 {
        return;
    }
    WANTED.store(role as u64, Release);
    // It may be asleep.
    gic::send(gic::sgi_to(gic::SGI, 1));
    wait_for(&SEEN, role);
    cpu::pause(ARRIVAL);
    ALLOWED.store(role as u64, Release);
    wait_for(&PLAYED, role);
    cpu::pause(ARRIVAL);
}

/// How often it was woken in [`Role::Wake`].
pub fn wakes() -> u64 {
    WAKES.load(Acquire)
}

/// The counter when it was last woken in [`Role::Wake`].
pub fn woken_at() -> u64 {
    WOKEN_AT.load(Acquire)
}

fn wait_for(what: &AtomicU64, role: Role) {
    while what.load(Acquire) != role as u64 {
        instruction!("yield");
    }
}

/// What the second CPU does. Interrupts are masked wherever nothing else is said.
pub extern "C" fn main() -> ! {
    gic::setup_cpu(1);
    loop {
        let number = WANTED.load(Acquire);
        let role = ROLES.into_iter().find(|role| *role as u64 == number).unwrap_or(Role::None);
        SEEN.store(number, Release);
        wait_for(&ALLOWED, role);
        while gic::take() {}
        PLAYED.store(number, Release);
        while WANTED.load(Acquire) == number {
            turn(role);
        }
    }
}

fn turn(role: Role) {
    match role {
        Role::None => instruction!("yield"),
        Role::Spin => spin(),
        Role::Sleep => sleep(),
        Role::Wake => {
            instruction!("wfi");
            WOKEN_AT.store(mrs!("cntvct_el0"), Relaxed);
            gic::take();
            WAKES.store(wakes() + 1, Release);
        }
        Role::Return => {
            instruction!("wfi");
            if gic::take() && WANTED.load(Acquire) == role as u64 {
                gic::send(TO_FIRST);
            }
        }
        Role::Reply => {
            let before = cpu::taken(1);
            sleep();
            if cpu::taken(1) != before && WANTED.load(Acquire) == role as u64 {
                gic::send(TO_FIRST);
            }
        }
    }
}

fn sleep() {
    instruction!("wfi");
    cpu::unmask();
    cpu::mask();
}

/// Runs with interrupts unmasked until there is another part to play.
fn spin() {
    cpu::unmask();
    while WANTED.load(Acquire) == Role::Spin as u64 {
        instruction!("yield");
    }
    cpu::mask();
}
