//! A vCPU's registers: start, load and put, and events that Stile injects.

pub mod context;
pub mod cr0;
pub mod cr4;
pub mod debug;
pub mod extended;
#[cfg(not(feature = "svm"))]
mod guest_state;
#[cfg(not(feature = "svm"))]
pub mod host_state;
pub mod inject;
pub mod loaded;
pub mod moved_msrs;
pub mod msrs;
#[cfg(not(feature = "svm"))]
pub mod pauses;
pub mod simd;
pub mod start_state;
#[cfg(not(feature = "svm"))]
mod structure;

#[cfg(feature = "svm")]
pub use super::svm::pauses;
#[cfg(feature = "svm")]
use super::svm::{guest_state, structure};
