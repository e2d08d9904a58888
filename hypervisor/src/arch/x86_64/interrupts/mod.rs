//! Virtual interrupts: delivery, and the events INIT, SIPI and NMI.

pub mod deadline;
pub mod deadlock;
pub mod delivery;
pub mod events;
pub mod sent;
pub mod window;
