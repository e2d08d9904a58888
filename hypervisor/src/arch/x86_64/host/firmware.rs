//! Turning the machine off.

use stile_firmware::acpi::PowerOff;

use super::instructions::{out8, out16};
use crate::once::Once;

static POWER_OFF: Once<Option<PowerOff>> = Once::new();

/// Remembers what the ACPI tables say.
pub fn setup(power_off: Option<PowerOff>) {
    POWER_OFF.set(power_off);
}

/// Turns the machine off.
pub fn power_off() -> ! {
    super::uart::finish();
    // Bochs ends for this word at this port (its user manual, "Shutdown"); elsewhere nothing is there.
    const BOCHS: u16 = 0x8900;
    for byte in *b"Shutdown" {
        // SAFETY: the machine is to end.
        unsafe { out8(BOCHS, byte) };
    }
    if let Some(Some(power_off)) = POWER_OFF.try_get() {
        for (port, value) in power_off.writes.into_iter().flatten() {
            // SAFETY: the firmware's tables name the port, and the machine is to end.
            unsafe { out16(port, value) };
        }
    }
    loop {
        super::wait_for_interrupt();
    }
}
