//! Facts about AArch64 system registers and exception syndromes, for a hypervisor at EL2.
//!
//! Nothing here reads or writes a register. The tables are constants; a missing, double or
//! misplaced row doesn't compile.
//!
//! - [`encoding`]: the names that instructions and syndromes give to registers
//! - [`id`]: what a guest reads in the ID registers
//! - [`trapped`]: the other registers whose accesses come to EL2, and how they are answered
//! - [`syndrome`]: `ESR_EL2` read, `ESR_EL1` made
//! - [`injection`]: how a vCPU enters an exception at EL1
//! - [`serror`]: what a physical SError means for the vCPU that caused it
//! - [`step`]: `SPSR_EL2` after an instruction that was executed in its place
//!
//! "Arm ARM" is the *Arm Architecture Reference Manual for A-profile architecture*, DDI 0487;
//! registers and fields newer than that are in *Arm A-profile Architecture Registers*, DDI 0601.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod encoding;
pub mod id;
pub mod injection;
pub mod serror;
pub mod step;
pub mod syndrome;
pub mod trapped;

pub use encoding::SysReg;
