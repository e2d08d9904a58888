//! Conversion between the processor's counter and the clocks of devices.

use crate::arch::x86_64::host::timer;

/// Returns the current count of a device's clock with this frequency in Hz.
pub fn count_now(device_hz: u64) -> u64 {
    count_at(timer::now(), device_hz)
}

/// Returns the count of a device's clock at a time in TSC ticks.
pub fn count_at(ticks: u64, device_hz: u64) -> u64 {
    (u128::from(ticks) * u128::from(device_hz) / u128::from(timer::frequency().max(1))) as u64
}

/// Returns the time, in TSC ticks, at which a device's clock has counted this far.
pub fn tsc_at(ticks: u64, device_hz: u64) -> u64 {
    let ticks = (u128::from(ticks) * u128::from(timer::frequency())).div_ceil(u128::from(device_hz));
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
