//! Power-off of the machine.

use stile_firmware::acpi::PowerOff;

use super::instructions::{out8, out16};
use crate::once::Once;

static POWER_OFF: Once<Option<PowerOff>> = Once::new();

/// Sets the power-off register from the ACPI tables.
pub fn setup(power_off: Option<PowerOff>) {
    POWER_OFF.set(power_off);
}

/// Powers the machine off.
pub fn power_off() -> ! {
    super::uart::finish();
    // Bochs ends at this word on this port (its user manual, "Shutdown"), which is unused elsewhere.
    const BOCHS: u16 = 0x8900;
    for byte in *b"Shutdown" {
        // SAFETY: only Bochs has a device at the port, which ends the machine.
        unsafe { out8(BOCHS, byte) };
    }
    if let Some(Some(power_off)) = POWER_OFF.try_get() {
        for (port, value) in power_off.writes.into_iter().flatten() {
            // SAFETY: firmware's tables name the port, and the machine ends.
            unsafe { out16(port, value) };
        }
    }
    loop {
        super::wait_for_interrupt();
    }
}
