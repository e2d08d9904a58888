//! The ledger: the account of every exit of one vCPU.
//!
//! Each exit is counted twice, independently. The vector increments [`Ledger::taken`] first of all; the
//! return path adds the exit and its duration to the [`Row`] whose [`RowId`] the handler returned. The sum
//! over the rows must equal the number taken: a nonzero [`Ledger::difference`] while no exit is in progress
//! is a bug.
//!
//! # From an exit to its row
//!
//! A row has a reason and a sub-reason: `SYSREG`, `ID_AA64PFR0_EL1`; `MMIO`, `PL011 FR read`. [`Ledger`] has
//! three kinds, in this order:
//!
//! | rows | kind | determined by |
//! | --- | --- | --- |
//! | `0..REASONS` | one per reason, for sub-reasons without a row of their own | [`Reason::other`] |
//! | `REASONS..DYNAMIC_BASE` | static: known at compile time, such as a device's registers | a constant, or arithmetic |
//! | `DYNAMIC_BASE..ROWS` | dynamic: assigned at run time | [`Ledger::row_for`], off the hot path |
//!
//! The ledger is independent of the architecture. The names of reasons and static rows are in a [`Catalogue`]
//! per architecture: [`aarch64::CATALOGUE`], [`x86_64::CATALOGUE`]. A program that shows ledgers (feature
//! `report`) uses the catalogue of the observed machine.
//!
//! # The update in assembly
//!
//! [`Ledger`] and [`Row`] are `#[repr(C)]`, and [`layout`] has every offset used by the exit path.
//! [`Ledger::account`] is the same update in Rust.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "report"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aarch64;
mod account;
mod catalogue;
pub mod layout;
mod page;
#[cfg(feature = "report")]
pub mod report;
mod row;
pub mod x86_64;

pub use account::{Entry, Ledger};
pub use catalogue::{Access, Catalogue, Name, SubReason};
pub use row::{DYNAMIC_BASE, DYNAMIC_ROWS, REASONS, ROWS, Reason, Row, RowId, RowKey};
