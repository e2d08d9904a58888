//! Interrupt controllers of x86 guests: a local APIC for each virtual processor (Intel SDM volume 3, chapter
//! "Advanced Programmable Interrupt Controller (APIC)") and an I/O APIC (*82093AA I/O Advanced Programmable
//! Interrupt Controller*, with the EOI register of its successors).
//!
//! All is plain data and pure logic: no clock, no lock. An operation says what it causes elsewhere, and the
//! caller carries it there:
//! - [`LocalApic`] answers accesses to its registers, by memory or by MSR; a write may ask for a [`Message`] to be sent or
//!   an end of interrupt to be told to the I/O APIC ([`Effect`]);
//! - [`Pages::receive`] takes a message that [`Pages::is_target`] says is for it, from any processor, and names what is
//!   not its own to do: INIT, startup, NMI ([`Received`]);
//! - [`IoApic`] follows its lines and has messages to send ([`IoApic::next_message`]).
//!
//! [`Pages`] has the layout of the virtual-APIC page and the posted-interrupt descriptor ("APIC Virtualization and Virtual Interrupts"):
//! with the processor's help or without, an interrupt is posted there, and an APIC's owner takes it in ([`LocalApic::merge`]).
#![no_std]
#![forbid(unsafe_code)]

mod ioapic;
mod local;
mod message;
pub mod offset;
mod pages;
mod posted;
mod summary;
mod vectors;

pub use ioapic::{IoApic, PINS};
pub use local::{Effect, GeneralProtection, LocalApic, Mode, Received, Status, is_kept};
pub use message::{Delivery, Destination, Message};
pub use pages::Pages;
pub use vectors::Vectors;
