//! Sleeps, until an interrupt and for a time.

use pc::{exception, lapic, machine};

/// Vector of the timer, and its mode: a deadline of the time-stamp counter.
const TIMER: u8 = 0x70;
const BY_DEADLINE: u32 = 2 << 17;
const TSC_DEADLINE: u32 = 0x6e0;
/// ACPI's timer: its port, the bits of its counter, and its ticks in a second.
const ACPI_TIMER: u16 = 0x608;
const ACPI_BITS: u32 = 0xff_ffff;
const ACPI_SECOND: u64 = 3_579_545;

/// Sleeps until an interrupt, which is taken.
pub fn halt() {
    // SAFETY: interrupts have handlers, which keep all registers.
    unsafe { core::arch::asm!("sti", "hlt", "cli") };
}

/// Ticks of the time-stamp counter in a second. A stall between the readings of the two clocks distorts a measurement: the
/// result is the first that agrees with the one before, if one of a hundred does.
fn second() -> u64 {
    let mut last = measure();
    for _ in 0..100 {
        let next = measure();
        if next.abs_diff(last) <= next / 16 {
            return next;
        }
        last = next;
    }
    last
}

/// Measures those ticks, in a fiftieth of a second.
fn measure() -> u64 {
    // SAFETY: a load of a counter.
    let now = || unsafe { machine::in32(ACPI_TIMER) };
    let (begin, ticks) = (now(), machine::ticks());
    let passed = loop {
        let passed = now().wrapping_sub(begin) & ACPI_BITS;
        if u64::from(passed) > ACPI_SECOND / 50 {
            break passed;
        }
    };
    (machine::ticks() - ticks) * ACPI_SECOND / u64::from(passed)
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
