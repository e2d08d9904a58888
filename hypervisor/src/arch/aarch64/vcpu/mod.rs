//! A vCPU's registers: reset, load and put, trap controls, and exceptions that Stile injects.

pub mod context;
pub mod debug;
pub mod fp;
pub mod id_registers;
pub mod inject;
pub mod keys;
pub mod loaded;
pub mod registers;
pub mod serror;
pub mod traps;
