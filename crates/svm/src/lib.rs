//! AMD-V (SVM) as pure logic: the virtual machine control block (VMCB), its clean bits, intercepts, exit codes,
//! permission maps and address-space identifiers.
//!
//! "The manual" is the AMD64 Architecture Programmer's Manual, Volume 2: System Programming; sections are named by
//! their titles.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod asid;
pub mod clean;
pub mod clock;
mod event;
pub mod exit;
mod field;
pub mod intercept;
mod io;
mod npf;
mod permission;
mod rights;
mod task;

pub use asid::{Asid, Asids};
pub use event::{exception, injectable, is_of_software};
pub use field::{Field, Form, SAVE_AREA, VMCB_SIZE};
pub use io::{IO_ADDRESS, io_info_of_read, io_qualification};
pub use npf::npf_qualification;
pub use permission::{IO_MAP_SIZE, MSR_MAP_SIZE, msr_bits};
pub use rights::{pack, unpack};
pub use task::task_qualification;
