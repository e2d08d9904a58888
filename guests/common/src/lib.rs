//! What the test guests of all architectures share: outcomes of tests, random numbers that repeat, and the scheme of a guest that does all it
//! can to break out of its VM.
#![no_std]

pub mod canary;
pub mod cpu_time;
pub mod fail;
pub mod phases;
pub mod random;
pub mod share;
pub mod soak;
