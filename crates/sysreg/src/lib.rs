//! Facts about AArch64 system registers and exception syndromes, for a hypervisor at EL2.
//!
//! The crate accesses no register. The tables are constants; a missing, double or misplaced row
//! does not compile.
//!
//! - [`encoding`]: encodings of registers in instructions and syndromes; by name: constants of [`SysReg`], and [`operand`]
//! - [`id`]: ID register values for guests
//! - [`trapped`]: other trapped registers, and the answers to their accesses
//! - [`syndrome`]: decoding of `ESR_EL2`, encoding of `ESR_EL1`
//! - [`injection`]: injection of exceptions into EL1
//! - [`serror`]: meaning of a physical SError for the vCPU that caused it
//! - [`step`]: `SPSR_EL2` after an emulated instruction
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
mod name;
mod register;
pub mod serror;
pub mod step;
pub mod syndrome;
pub mod trapped;

pub use encoding::SysReg;
