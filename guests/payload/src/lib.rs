//! What every test guest is made of.
//!
//! A guest is one program at EL1, or at EL2 with VHE, of the board that Stile gives its VMs: QEMU's `virt` memory map, a GICv3, a PL011, PSCI by
//! HVC, or by SMC from EL2. It prints `PASS name`, `FAIL name: why` or `SKIP name: why` for each test, then `EXIT: STATUS=n`, and powers off.
//! The same file runs on QEMU `virt` itself, which is how a test is held against a machine that is not Stile.
#![no_std]

pub mod board;
pub mod console;
pub mod encode;
pub mod entry;
pub mod exception;
pub mod gic;
pub mod harness;
pub mod icc;
pub mod irq;
pub mod lock;
pub mod machine;
pub mod mmu;
pub mod probe;
pub mod psci;
pub mod smp;
pub mod sysreg;
pub mod timer;
pub mod uart;
pub mod wait;

pub use common::{check, check_eq, random, skip};

/// What a suite needs in nearly every file.
pub mod prelude {
    pub use crate::harness::{Fail, Outcome};
    pub use crate::{check, check_eq, gic, icc, irq, machine, mrs, msr, print, println, skip, smp, wait};
}
