//! Device models, and the emulation of instructions that access them.

pub mod clock;
pub mod decoder;
pub mod devices;
pub mod ports;
pub mod processor;
pub mod registers;
pub mod sleep;
