//! Interrupt controllers of x86 guests: a local APIC per virtual processor (Intel SDM volume 3, chapter
//! "Advanced Programmable Interrupt Controller (APIC)") and an I/O APIC (*82093AA I/O Advanced Programmable
//! Interrupt Controller*, with the EOI register of its successors).
//!
//! Plain data and pure logic: no clock, no locks. An operation returns its external effects, and the caller
//! carries them out:
//! - [`LocalApic`] emulates accesses to its registers, by memory or by MSR; a write may cause a [`Message`]
//!   to be sent or an end of interrupt to be broadcast to the I/O APIC ([`Effect`]);
//! - [`Pages::receive`] accepts a message, from any processor, for which [`Pages::is_target`] is true, and
//!   returns events for the processor: INIT, startup, NMI ([`Received`]);
//! - [`HostTimer`] shares a physical CPU's timer between the hypervisor and the vCPU that is loaded there;
//! - [`IoApic`] samples its lines and generates messages ([`IoApic::next_batch`]).
//!
//! [`Pages`] has the layout of the virtual-APIC page and the posted-interrupt descriptor ("APIC
//! Virtualization and Virtual Interrupts"): with or without APIC virtualization, interrupts are posted there,
//! and the APIC's owner merges them into IRR ([`LocalApic::merge`]).
#![no_std]
#![forbid(unsafe_code)]

mod address;
mod batch;
mod host_timer;
mod ioapic;
mod local;
mod lvt;
mod lvt_entries;
mod message;
mod mode;
pub mod offset;
mod pages;
mod posted;
mod summary;
mod vectors;

pub use address::{Acceptors, Address, Arbitration};
pub use batch::{Batch, PINS};
pub use host_timer::{Demand, Form, Hardware, HostTimer};
pub use ioapic::IoApic;
pub use local::{Effect, EoiBit, GeneralProtection, LocalApic, Status, reads_from_page};
pub use message::{Delivery, Destination, Message, Received};
pub use mode::Mode;
pub use pages::Pages;
pub use vectors::Vectors;
