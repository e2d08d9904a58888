//! Encodings of the Arm SMMUv3 (Arm System Memory Management Unit Architecture Specification, IHI 0070):
//! stream-table entries, commands, queue indexes and event records, as far as second-stage translation needs
//! them; its command queue. The hypervisor has the registers and the memory.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
mod commands;
mod event;
mod queue;
mod stream;
#[cfg(test)]
mod tests;

pub use commands::{CommandQueue, PATIENCE, QueueRegisters};
pub use event::{Event, Kind};
pub use queue::Queue;
pub use stream::{SecondStage, StreamEntry};
