//! Devices of a VM: models (crate `stile-device`), each behind a lock, connected to interrupt lines, console and
//! buses. docs/devices.md describes how to add one.

pub mod alarm;
pub mod bus;
mod clock;
mod line;
mod on_bus;
mod uart;

use bus::Buses;
pub use bus::Optional;
use clock::Clock;
pub use line::Line;
use uart::Uart;

/// Devices that VMs of every architecture have, and the buses.
pub struct Devices {
    /// The console's UART.
    pub uart: Uart,
    /// The real-time clock.
    pub clock: Clock,
    /// Address map of all devices.
    pub buses: Buses,
}

impl Devices {
    /// Creates the devices of VM number `vm` with `vcpus` vCPUs, in their reset state.
    ///
    /// # Errors
    /// A description, as from [`Buses::new`].
    pub fn new(vm: usize, vcpus: usize, optional: Optional) -> Result<Devices, &'static str> {
        Ok(Devices { uart: Uart::new(vm), clock: Clock::new(), buses: Buses::new(vcpus, optional)? })
    }

    /// Resets UART and clock; the buses are constant.
    pub fn reset(&self) {
        self.uart.reset();
        self.clock.reset();
    }
}
