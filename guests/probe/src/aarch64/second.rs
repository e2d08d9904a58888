//! The second CPU, which plays a role assigned by the first one.

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::gic::{self, Gic, by_gic};
use super::platform::Platform;
use super::sysreg::{instruction, mrs};
use super::{cpu, psci};

/// The role of the second CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Role {
    /// None yet.
    None,
    /// Runs, and takes interrupts.
    Spin,
    /// Waits for interrupts, and takes them.
    Sleep,
    /// Waits for interrupts with interrupts masked, and records its wake-ups.
    Wake,
    /// Waits for an SGI with interrupts masked, and sends one back.
    Return,
    /// Waits for an SGI, takes it, and sends one back.
    Reply,
    /// Runs, takes SGIs, and sends one back for each.
    Echo,
}

const ROLES: [Role; 7] = [Role::None, Role::Spin, Role::Sleep, Role::Wake, Role::Return, Role::Reply, Role::Echo];

/// The requested role.
static WANTED: AtomicU64 = AtomicU64::new(Role::None as u64);
/// The role whose request the second CPU has seen. It has left the previous one.
static SEEN: AtomicU64 = AtomicU64::new(u64::MAX);
/// The role that it may start: the SGI that ended the previous one has arrived.
static ALLOWED: AtomicU64 = AtomicU64::new(Role::None as u64);
/// The current role.
static PLAYED: AtomicU64 = AtomicU64::new(u64::MAX);

static WAKES: AtomicU64 = AtomicU64::new(0);
static WOKEN_AT: AtomicU64 = AtomicU64::new(0);

/// Microseconds within which an SGI arrives.
const ARRIVAL: u64 = 100;

/// Turns the second CPU on. Returns whether there is one.
pub fn start(platform: &Platform) -> bool {
    let started = platform.cpus > 1 && psci::start(platform, 1);
    if started {
        wait_for(&PLAYED, Role::None);
    }
    started
}

/// Assigns a role to the second CPU, and waits until it has started.
pub fn play(role: Role) {
    if WANTED.load(Acquire) == role as u64 {
        return;
    }
    WANTED.store(role as u64, Release);
    // It may be asleep.
    by_gic!(send_to_second());
    wait_for(&SEEN, role);
    cpu::pause(ARRIVAL);
    ALLOWED.store(role as u64, Release);
    wait_for(&PLAYED, role);
    cpu::pause(ARRIVAL);
}

fn send_to_second<G: Gic>() {
    G::send(gic::SGI, 1);
}

/// Number of wake-ups in [`Role::Wake`].
pub fn wakes() -> u64 {
    WAKES.load(Acquire)
}

/// The counter at the last wake-up in [`Role::Wake`].
pub fn woken_at() -> u64 {
    WOKEN_AT.load(Acquire)
}

fn wait_for(what: &AtomicU64, role: Role) {
    while what.load(Acquire) != role as u64 {
        instruction!("yield");
    }
}

/// Main program of the second CPU. Interrupts are masked unless stated otherwise.
pub fn main() -> ! {
    by_gic!(play_roles())
}

fn play_roles<G: Gic>() -> ! {
    loop {
        let number = WANTED.load(Acquire);
        let role = ROLES.into_iter().find(|role| *role as u64 == number).unwrap_or(Role::None);
        SEEN.store(number, Release);
        wait_for(&ALLOWED, role);
        while G::take() {}
        PLAYED.store(number, Release);
        while WANTED.load(Acquire) == number {
            turn::<G>(role);
        }
    }
}

fn turn<G: Gic>(role: Role) {
    match role {
        Role::None => instruction!("yield"),
        Role::Spin => spin(),
        Role::Sleep => sleep(),
        Role::Wake => {
            instruction!("wfi");
            WOKEN_AT.store(mrs!("cntvct_el0"), Relaxed);
            G::take();
            WAKES.store(wakes() + 1, Release);
        }
        Role::Return => {
            instruction!("wfi");
            if G::take() && WANTED.load(Acquire) == role as u64 {
                G::send(gic::REPLY, 0);
            }
        }
        Role::Echo => echo::<G>(),
        Role::Reply => {
            let before = cpu::taken(1);
            sleep();
            if cpu::taken(1) != before && WANTED.load(Acquire) == role as u64 {
                G::send(gic::REPLY, 0);
            }
        }
    }
}

fn sleep() {
    instruction!("wfi");
    cpu::unmask();
    cpu::mask();
}

/// Runs with interrupts unmasked until the role changes, and answers each SGI.
fn echo<G: Gic>() {
    let mut before = cpu::taken(1);
    cpu::unmask();
    while WANTED.load(Acquire) == Role::Echo as u64 {
        let taken = cpu::taken(1);
        if taken != before {
            before = taken;
            G::send(gic::REPLY, 0);
        }
        instruction!("yield");
    }
    cpu::mask();
}

/// Runs with interrupts unmasked until the role changes.
fn spin() {
    cpu::unmask();
    while WANTED.load(Acquire) == Role::Spin as u64 {
        instruction!("yield");
    }
    cpu::mask();
}
