//! Models of guests' devices and firmware interfaces, except interrupt controllers with list
//! registers or APICs.
//!
//! The models are state machines. They hold a device's registers, answer accesses, and return the
//! effects outside the device: a byte to send, an interrupt line's new level. They read no clock,
//! hold no lock and access no other device; the hypervisor passes in what they need. No guest
//! input makes them panic.
//!
//! - [`pl011`]: Arm PrimeCell UART
//! - [`pl031`]: Arm PrimeCell Real Time Clock
//! - [`uart16550`]: the serial port of a PC
//! - [`smccc`]: dispatch of `HVC` and `SMC` calls, and the architecture's own calls
//! - [`psci`]: the calls for power states of processors and of the machine
//! - [`uart16550`]: the PC's UART
//! - [`pit`], [`rtc`], [`pic`]: the PC's timer, clock and 8259s, as far as an operating system with an APIC needs them
//! - [`flash`]: NOR flash for the variables of UEFI firmware
//! - [`fw_cfg`]: QEMU's firmware configuration device
//! - [`keyboard`]: the PC's keyboard controller, which can reset it; [`screen`]: the cursor registers
//! - [`power`]: ACPI's fixed registers, for power-off, and the PC's reset register
//!
//! # Offsets and widths
//!
//! A register access has a byte offset inside the device's 4 KiB frame. A load's value is the
//! register shifted down by the byte lanes that the offset skips; the caller truncates it to the
//! access's width. A store's value is zero-extended by the caller. A store that does not start at
//! the first byte of a register is ignored, because the Arm devices are on a bus without byte strobes. The PC's devices have
//! byte registers at ports.
//!
//! # Interrupt lines
//!
//! Each operation that can change the device's interrupt line returns `irq: Option<bool>`:
//! `Some(level)` if the line changed to that level, otherwise `None`. Lines are level-sensitive and
//! low after reset.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod fifo;
pub mod flash;
pub mod fw_cfg;
pub mod keyboard;
mod lead;
mod line;
pub mod pic;
pub mod pit;
pub mod pl011;
pub mod pl031;
pub mod power;
mod primecell;
pub mod psci;
pub mod rtc;
pub mod screen;
pub mod smccc;
pub mod uart16550;
