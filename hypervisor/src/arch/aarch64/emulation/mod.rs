//! Devices that guests reach by accesses that trap.

pub mod gic;
