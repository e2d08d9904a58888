//! Traces: the record of an event, and the ring that carries records from the CPU that writes them to the one that sends them.
//!
//! Both have two 64-bit words per record, because the exit path writes records in assembly (`hypervisor/src/arch/*/exit/`).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod record;
mod recorder;
mod ring;

pub use record::{ID_SHIFT, IS_VCPU, KIND_SHIFT, Kind, NO_VCPU, ROW_SHIFT, Record, TICKS_MASK, extend, id_of, vcpu_of};
pub use recorder::{BEFORE, Counts, DROPPED, RING_SHIFT, Recorder, Ring, SLOT, SOURCE};
pub use ring::{SLOTS, Slot, next};
