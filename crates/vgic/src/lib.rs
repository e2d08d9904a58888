//! A virtual GICv3 (Arm GIC Architecture Specification, IHI 0069): the distributor, the
//! redistributors, and the engine that moves interrupts into and out of list registers.
//!
//! The guest sees one Security state (GICD_CTLR.DS = 1), affinity routing always on, no LPIs and no
//! ITS. All is plain data and pure logic: no lock, no pointer, no register access of its own.
//!
//! # Who owns what
//! - A [`Distributor`] per VM: the SPIs (INTID 32 to 255). The hypervisor keeps it under one lock.
//! - A [`Redistributor`] per vCPU: SGIs and PPIs (INTID 0 to 31), what sits in which list register,
//!   and the CPU interface while the vCPU is not loaded. One lock each. Lock order: the distributor,
//!   then a redistributor; never two redistributors.
//! - The list registers of a loaded vCPU belong to the physical CPU that it is loaded on, and only
//!   that CPU reaches them, through [`ListRegisters`].
//!
//! An interrupt in a list register is *resident*: the hardware changes its state as the guest
//! acknowledges and deactivates it, and software finds out only when it reads the register. List
//! registers are not read at exit, nor written at entry. No operation on the distributor or on
//! another vCPU's redistributor touches a list register: it leaves a note (a *recall*) and names in
//! its [`Kick`] the vCPUs that must look at it.
//!
//! # What the hypervisor does with a [`Kick`]
//! For each vCPU in it, under the distributor's lock and then that vCPU's redistributor's:
//! - this CPU's own loaded vCPU: [`Redistributor::sync`] with the live list registers;
//! - not loaded anywhere ([`Redistributor::is_loaded`] is false): [`Redistributor::sync_saved`], and
//!   if it sleeps in WFI and [`Redistributor::has_deliverable_saved`], wake it;
//! - loaded on another CPU: send that CPU an interrupt; the exit it causes ends in
//!   [`Redistributor::sync`].
//!
//! A vCPU that sleeps in WFI while it stays loaded needs the same question after each of these, and one
//! that is put in its sleep needs it after [`Redistributor::unload`].
//!
//! An operation on a redistributor alone reports to that vCPU only, by a [`Delivery`]: its owner runs
//! [`Redistributor::sync_private`], which needs no distributor lock, and falls back to `sync` if that
//! says [`Delivery::NeedsSync`].
//!
//! # Without the lock
//! SGIs and the timers' PPIs come often and change seldom. While such an interrupt sits in a list register in the common way, the CPU that
//! has its vCPU loaded delivers it by [`Shortcuts`], and one vCPU's SGIs to another go by [`Mail`]: neither takes a lock. What is in
//! the mail and has no shortcut goes through [`Redistributor::accept`]. Whoever changes another vCPU's redistributor, or the
//! distributor, puts a note into its mail before the kick: a vCPU that finds its mail empty has nothing to do.
//!
//! # When list registers run out
//! Then those of the highest priority are in list registers, the rest waits in software, and maintenance
//! interrupts are asked for ([`Maintenance`]) until all fit again. An active interrupt can lose its list
//! register, too; its deactivation is then counted by the hardware (EOImode 0) or trapped (EOImode 1:
//! [`Redistributor::deactivate`]). With enough list registers there is no maintenance interrupt but for a
//! level-sensitive line that is still high at its end of interrupt.
//!
//! # Limits
//! With EOImode 1, a write of ICC_DIR_EL1 deactivates what is active on the vCPU that writes. An SPI that
//! is active on another is reached while writes of ICC_DIR_EL1 are trapped, and by GICD_ICACTIVER, only.
//!
//! # Reads that need a list register
//! The pending and active state of a resident interrupt is exact only in its list register. A read of
//! such state answers [`Read::Stale`] with the vCPUs that must publish first: treat it as a kick, wait
//! until [`Distributor::unpublished`] no longer names them (serving one's own kicks meanwhile), then
//! take the answer from [`Distributor::read_published`]. Writes never wait: GICD_CTLR.RWP reads as one
//! until every vCPU concerned has seen them.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod block;
mod distributor;
mod engine;
mod interface;
mod kick;
mod lr;
mod mmio;
mod redistributor;
mod sgi;
mod shortcuts;

pub use distributor::Distributor;
pub use interface::{CpuInterface, ListRegisters, MAX_LIST_REGISTERS, Maintenance, Vmcr, running_priority};
pub use kick::{Delivery, Kick};
pub use lr::ListRegister;
pub use mmio::{GICD_SIZE, GICR_SIZE, Read, Size};
pub use redistributor::{Config, Loaded, Redistributor, SAME_PPIS};
pub use sgi::{Sgi, SgiRegister};
pub use shortcuts::{Letters, Mail, Shortcuts};

/// The most vCPUs that one distributor serves. vCPU `n` has the affinity 0.0.0.`n`.
pub const MAX_VCPUS: usize = 16;

/// Interrupts held in one block of registers.
pub(crate) const BLOCK: usize = 32;

/// SGIs are INTIDs 0 to 15.
pub(crate) const SGIS: usize = 16;

/// Blocks of SPIs: INTIDs 32 to 255.
pub(crate) const SPI_BLOCKS: usize = 7;

/// The first INTID that does not exist.
pub const INTID_END: u32 = (BLOCK * (SPI_BLOCKS + 1)) as u32;

/// The INTID of the first SPI.
pub const FIRST_SPI: u32 = BLOCK as u32;
