//! The common library of Arm test guests.
//!
//! A guest is one program at EL1, or at EL2 with VHE, for the board that Stile gives its VMs: QEMU's `virt`
//! memory map, a GICv3, a PL011, PSCI by HVC, or by SMC from EL2. It prints `PASS name`, `FAIL name: why` or
//! `SKIP name: why` for each test, then `EXIT: STATUS=n`, and powers off. The same file runs on QEMU `virt`
//! itself, to compare Stile with another implementation.
#![no_std]

pub mod board;
pub mod console;
pub mod encode;
pub mod entry;
pub mod exception;
pub mod gic;
pub mod gicc;
pub mod harness;
pub mod icc;
pub mod irq;
pub mod lock;
pub mod machine;
pub mod mmu;
pub mod probe;
pub mod psci;
pub mod smp;
mod start;
pub mod sysreg;
pub mod timer;
pub mod uart;
pub mod wait;

pub use common::{check, check_eq, random, skip};

/// Common imports of suites.
pub mod prelude {
    pub use crate::harness::{Fail, Outcome};
    pub use crate::{check, check_eq, gic, icc, irq, machine, mrs, msr, print, println, skip, smp, wait};
}
