//! Nested virtualization on AArch64, as pure logic: the semantics of a guest hypervisor's (L1's) registers,
//! tables, traps and interrupts while it runs at virtual EL2, and while its own VM (L2) runs. No access to
//! system registers, TLBs or the machine's tables; everything that L1 controls is untrusted.
//!
//! - [`vncr`]: the page of L1's registers that only take effect while L2 runs
//! - [`forward`]: L2 exits to forward to L1
//! - [`inject`]: exceptions to virtual EL2, and returns from it
//! - [`layout`]: EL2 registers whose layout depends on HCR_EL2.E2H
//! - [`pauth`]: authentication of the return address of ERETAA and ERETAB
//! - [`shadow`]: shadow second stages for L2, combined from L1's tables and L0's
//! - [`tlbi`]: L1's TLB maintenance
//! - [`vgic`]: L1's list registers, loaded on the processor while L2 runs
//! - [`at`]: L1's address translation instructions
//! - [`serror`]: virtual SErrors of L1 and L2
//!
//! "Virtual" means as L1 sees it: its EL2 is the processor's EL1. "Arm ARM" is the *Arm Architecture
//! Reference Manual for A-profile architecture*, DDI 0487; sections are cited by name.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod at;
pub mod forward;
pub mod inject;
pub mod layout;
pub mod pauth;
pub mod serror;
pub mod shadow;
pub mod tlbi;
pub mod vgic;
pub mod vncr;
