//! Virtual interrupts: delivery, APIC virtualization, and the events INIT, SIPI and NMI.

pub mod deadline;
pub mod deadlock;
pub mod delivery;
#[cfg(not(feature = "svm"))]
pub mod descriptors;
#[cfg(not(feature = "svm"))]
pub mod direct;
pub mod events;
#[cfg(not(feature = "svm"))]
pub mod record;
#[cfg(not(feature = "svm"))]
pub mod virtual_apic;
pub mod window;

#[cfg(feature = "svm")]
pub use super::svm::{descriptors, direct, record, virtual_apic};
