//! A vCPU's registers: start, load and put, and events that Stile injects.

pub mod context;
pub mod cr0;
pub mod cr4;
pub mod debug;
pub mod extended;
pub mod inject;
pub mod loaded;
pub mod moved_msrs;
pub mod msrs;
pub mod saved_fields;
pub mod simd;
pub mod start_state;
