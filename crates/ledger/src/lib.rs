//! The ledger: the account of every exit of one vCPU.
//!
//! Each exit is counted twice, in two places that do not know each other. The vector adds one to
//! [`Ledger::taken`] before anything else happens; the way back into the guest adds the exit and
//! its length to the [`Row`] whose [`RowId`] the handler returned. The sum over the rows must be
//! the number taken: [`Ledger::difference`] says what is missing, and it is a bug if it isn't zero
//! while no exit is in progress.
//!
//! # How an exit finds its row
//!
//! A row stands for a reason and a sub-reason: `SYSREG`, `ID_AA64PFR0_EL1`; `MMIO`, `PL011 FR
//! read`. There are three kinds, in the order in which they lie in [`Ledger`]:
//!
//! | rows | what | found by |
//! | --- | --- | --- |
//! | `0..REASONS` | the rest of each reason, with no sub-reason of its own | [`Reason::other`] |
//! | `REASONS..DYNAMIC_BASE` | static: known beforehand, such as a device's registers | a constant, or arithmetic |
//! | `DYNAMIC_BASE..ROWS` | dynamic: only seen at run time | [`Ledger::row_for`], off the hot path |
//!
//! The ledger itself knows no architecture. The names of reasons and static rows stand in a
//! [`Catalogue`], one for each architecture: [`aarch64::CATALOGUE`], [`x86_64::CATALOGUE`]. A program that shows ledgers
//! (feature `report`) takes the catalogue of the machine that it looks at.
//!
//! # The update in assembly
//!
//! [`Ledger`] and [`Row`] are `#[repr(C)]`, and [`layout`] gives every offset that the exit path
//! needs. [`Ledger::account`] is the same update in plain Rust.
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
