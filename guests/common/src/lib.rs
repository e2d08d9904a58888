//! Common code of the test guests of all architectures: test outcomes, reproducible random numbers, and the
//! scheme of hostile guests.
#![no_std]

pub mod canary;
pub mod cpu_time;
pub mod fail;
pub mod pause;
pub mod phases;
pub mod random;
pub mod share;
pub mod soak;
