//! A fake back end for tests on the developer's machine: registers are numbers in memory, time advances while CPUs
//! are idle, and tests generate the interrupts.

#![cfg_attr(not(test), allow(unused_imports, reason = "tests name what they observe and change"))]

pub mod devices;
mod host;
mod physical_cpu;
mod platform;
mod snapshot;
mod vcpu;
mod vm;

pub use host::{BUSY, FAULTY, FULL, INPUT, LINE, MEMORY, NOTHING_TO_DO, PoweredOff, SENDS, VARIABLES, pass};
pub use physical_cpu::{CONFINED, Cpu, Identity, Local};
pub use platform::HELD;
pub use snapshot::{ADVANCED, PREPARED};
pub use vcpu::{Vcpu, turn_on};
pub use vm::{RESTORES, Vm};

/// The fake back end.
pub struct Arch;

/// Device models for guests of this back end.
pub mod models {
    pub use stile_device::pl011::Pl011 as Uart;
    pub use stile_device::pl011::offset::DR as UART_DATA;
    pub use stile_device::pl031::Pl031 as Clock;
}
