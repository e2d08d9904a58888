//! What a guest of Stile finds beside its processors and its interrupt controller: a UART, a
//! real-time clock, and firmware to call.
//!
//! The models are state machines and no more. They hold a device's registers, answer an access,
//! and say what changed outside the device: a byte to send, an interrupt line's new level. They
//! read no clock, hold no lock and reach no other device; the hypervisor passes in what they need.
//! Everything that a guest can write is accepted without a panic.
//!
//! - [`pl011`]: Arm PrimeCell UART
//! - [`pl031`]: Arm PrimeCell Real Time Clock
//! - [`uart16550`]: the serial port of a PC
//! - [`smccc`]: whose call an `HVC` or `SMC` is, and the calls that belong to the architecture
//! - [`psci`]: the calls that turn processors and the machine on and off
//! - [`uart16550`]: the PC's UART
//! - [`pit`], [`rtc`], [`pic`]: the PC's timer, clock and interrupt controllers, as far as an operating system needs them
//!   that has an APIC
//! - [`fw_cfg`]: what a PC's firmware tells of the machine
//! - [`keyboard`]: the PC's keyboard controller, which resets it; [`screen`]: where the cursor is
//! - [`power`]: ACPI's fixed registers, which turn a PC off, and its reset register
//!
//! # Offsets and widths
//!
//! A register access has a byte offset inside the device's 4 KiB frame. A load's value is the
//! register shifted down by the byte lanes that the offset skips; the caller cuts it to the
//! access's width. A store's value is zero-extended by the caller. A store that doesn't start at
//! the first byte of a register is ignored, as both devices sit on a bus without byte strobes. The PC's devices have registers
//! of a byte, at ports.
//!
//! # Interrupt lines
//!
//! Each operation that can move the device's interrupt line returns `irq: Option<bool>`:
//! `Some(level)` when the line went to that level, `None` when it stays as it was. Both devices'
//! lines are level-sensitive and low after reset.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod fifo;
pub mod fw_cfg;
pub mod keyboard;
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
