//! ACPI's fixed hardware on Stile's PCs: the power-management timer and the power button (ACPI Specification, 4.8.3).

use crate::machine::{in32, out32};

/// Port of the timer.
const TIMER: u16 = 0x608;
/// Frequency of the timer in Hz.
pub const TIMER_HZ: u64 = 3_579_545;

/// PM1a's events: status, and enable in the upper half.
const EVENTS: u16 = 0x600;
/// PWRBTN_STS and PWRBTN_EN.
const BUTTON: u32 = 1 << 8;

/// Reads the timer. It has 32 bits, and wraps after 20 minutes.
pub fn timer() -> u64 {
    // SAFETY: reading the timer has no side effect.
    u64::from(unsafe { in32(TIMER) })
}

/// Waits until the power button is pressed. Calls `tell` once it is noticed.
pub fn wait_for_power_button(tell: impl FnOnce()) {
    // SAFETY: no program has a handler of ACPI's events: the status is polled.
    unsafe { out32(EVENTS, BUTTON << 16) };
    tell();
    // SAFETY: reading the status has no side effect.
    while unsafe { in32(EVENTS) } & BUTTON == 0 {}
    // SAFETY: clears the status and the enable bit; nothing else uses them.
    unsafe { out32(EVENTS, BUTTON) };
}
