//! Conversion between the processor's counter and the clocks of devices.

use crate::arch::x86_64::host::timer;

/// Returns the current count of a device's clock with this frequency in Hz.
pub fn now(device_hz: u64) -> u64 {
    at(timer::now(), device_hz)
}

/// Returns its count at a time in ticks of the TSC.
pub fn at(ticks: u64, device_hz: u64) -> u64 {
    (u128::from(ticks) * u128::from(device_hz) / u128::from(timer::frequency().max(1))) as u64
}

/// Converts a tick count of a device's clock to ticks of the TSC.
pub fn when(ticks: u64, device_hz: u64) -> u64 {
    let ticks = (u128::from(ticks) * u128::from(timer::frequency())).div_ceil(u128::from(device_hz));
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
