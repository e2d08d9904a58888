//! Virtual interrupts: delivery, APIC virtualization, and the events INIT, SIPI and NMI.

pub mod deadline;
pub mod deadlock;
pub mod delivery;
pub mod descriptors;
pub mod direct;
pub mod events;
pub mod record;
pub mod virtual_apic;
pub mod window;
