//! Sleeps, until an interrupt and for a time.

use common::pause;
use pc::acpi::{self, TIMER_HZ};
use pc::{exception, lapic, machine};

/// Vector of the timer, and its mode: a deadline of the time-stamp counter.
const TIMER: u8 = 0x70;
const BY_DEADLINE: u32 = 2 << 17;
const TSC_DEADLINE: u32 = 0x6e0;
/// Sleeps until an interrupt, which is taken.
pub fn halt() {
    // SAFETY: interrupts have handlers, which keep all registers.
    unsafe { core::arch::asm!("sti", "hlt", "cli") };
}

/// Measures the ticks of the time-stamp counter in a second, for a fiftieth of one.
fn second() -> u64 {
    let start = acpi::timer();
    // The timer may wrap.
    let elapsed = || acpi::timer().wrapping_sub(start) & u64::from(u32::MAX);
    (pause::ratio(machine::ticks, elapsed, TIMER_HZ / 50) * TIMER_HZ) >> 16
}

/// Sleeps for this many seconds. Other interrupts are taken meanwhile.
pub fn sleep(seconds: u64) {
    exception::handle(TIMER, None);
    lapic::write(lapic::register::TIMER, BY_DEADLINE | u32::from(TIMER));
    let end = machine::ticks() + seconds * second();
    while machine::ticks() < end {
        // SAFETY: Stile's VMs have the register, and the interrupt a handler.
        unsafe { machine::wrmsr(TSC_DEADLINE, end) };
        halt();
    }
}

/// Waits for a condition, asleep, for at most some minutes.
pub fn becomes(condition: impl Fn() -> bool) -> bool {
    for _ in 0..450 {
        if condition() {
            return true;
        }
        sleep(1);
    }
    condition()
}
