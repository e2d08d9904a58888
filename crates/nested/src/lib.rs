//! Nested virtualization on AArch64, as pure logic: what the registers, tables, traps and interrupts of a guest
//! hypervisor (L1) mean while it runs at virtual EL2, and while its own VM (L2) runs. Nothing here touches a
//! system register, a TLB or a table of the machine's own; all that L1 controls is untrusted.
//!
//! - [`vncr`]: the page that holds the registers of L1 that only matter to L2
//! - [`forward`]: which exits of L2 are L1's
//! - [`inject`]: exceptions to virtual EL2, and returns from it
//! - [`layout`]: registers of EL2 whose fields lie elsewhere while HCR_EL2.E2H is clear
//! - [`shadow`]: second stages for L2, made of L1's tables and L0's
//! - [`tlbi`]: L1's TLB maintenance
//! - [`vgic`]: L1's list registers, and the processor's while L2 runs
//! - [`at`]: L1's address translation instructions
//!
//! "Virtual" is what L1 sees: its EL2 is the processor's EL1. "Arm ARM" is the *Arm Architecture Reference Manual for A-profile
//! architecture*, DDI 0487; sections are cited by name.
#![no_std]
#![forbid(unsafe_code)]
// Set by whoever runs `tests/fill_race.rs` with loom.
#![allow(unexpected_cfgs, reason = "`loom` is known to Cargo.toml and that test only")]

#[cfg(test)]
extern crate std;

pub mod at;
pub mod forward;
pub mod inject;
pub mod layout;
pub mod shadow;
pub mod tlbi;
pub mod vgic;
pub mod vncr;
