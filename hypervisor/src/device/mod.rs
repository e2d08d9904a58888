//! The devices of a VM: models (crate `stile-device`) behind a lock each, where their bytes and interrupt lines go, and the buses that lead
//! to them. docs/devices.md says how to add one.

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

/// The devices that VMs of every architecture have, and the buses.
pub struct Devices {
    /// The console's.
    pub uart: Uart,
    /// The time of day.
    pub clock: Clock,
    /// Addresses of all devices.
    pub buses: Buses,
}

impl Devices {
    /// The devices of VM number `vm`, with so many vCPUs, after reset.
    ///
    /// # Errors
    /// In words: as [`Buses::new`].
    pub fn new(vm: usize, vcpus: usize, optional: Optional) -> Result<Devices, &'static str> {
        Ok(Devices { uart: Uart::new(vm), clock: Clock::new(), buses: Buses::new(vcpus, optional)? })
    }

    /// Resets UART and clock. The buses are constant.
    pub fn reset(&self) {
        self.uart.reset();
        self.clock.reset();
    }
}
