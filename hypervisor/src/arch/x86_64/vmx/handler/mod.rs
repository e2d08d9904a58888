//! Handlers of exits that only VMX has, and the one of rare exits. [`crate::arch::x86_64::handler`] has the others.

mod apic;
mod entry;
mod gate;
mod intercepted;
mod interrupt;
mod other;

pub use entry::wrap;
pub use intercepted::side_effects;
