//! A virtual GICv3 (Arm GIC Architecture Specification, IHI 0069): the distributor, the
//! redistributors, and the engine that moves interrupts into and out of list registers.
//!
//! The guest sees one Security state (GICD_CTLR.DS = 1) and affinity routing always enabled.
//! The crate is plain data and pure logic, without locks, pointers or register accesses.
//!
//! # Ownership
//! - A [`Distributor`] per VM: the SPIs (INTID 32 to 255) and LPIs. The hypervisor keeps it under one lock.
//! - A [`Redistributor`] per vCPU: SGIs and PPIs (INTID 0 to 31), the assignment of list registers, and the
//!   CPU interface while the vCPU is not loaded. One lock each. Lock order: the distributor, then a
//!   redistributor; never two redistributors.
//! - The list registers of a loaded vCPU belong to the physical CPU on which it is loaded; only that CPU
//!   accesses them, through [`ListRegisters`].
//!
//! An interrupt in a list register is *resident*: the hardware changes its state as the guest acknowledges
//! and deactivates it, and software learns of that only by reading the register. List registers are neither
//! read at exit nor written at entry. An operation on the distributor or on another vCPU's redistributor
//! never accesses a list register: it records a *recall* and returns a [`Kick`], the vCPUs that must
//! reevaluate it.
//!
//! # Handling a [`Kick`]
//! For each vCPU in it, under the distributor's lock and then that vCPU's redistributor's:
//! - this CPU's own loaded vCPU: [`Redistributor::sync`] with the live list registers;
//! - not loaded ([`Redistributor::is_loaded`] is false): [`Redistributor::sync_saved`]; if it is blocked in
//!   WFI and [`Redistributor::has_deliverable_saved`], wake it;
//! - loaded on another CPU: send that CPU an interrupt; the exit that it causes ends in
//!   [`Redistributor::sync`].
//!
//! A vCPU blocked in WFI while loaded needs [`Redistributor::has_deliverable`] after each of these, and one
//! that is put while blocked needs it after [`Redistributor::unload`].
//!
//! An operation on a single redistributor affects only that vCPU and returns a [`Delivery`]: its owner runs
//! [`Redistributor::sync_private`], which needs no distributor lock, and falls back to `sync` on
//! [`Delivery::NeedsSync`].
//!
//! # The lock-free fast path
//! SGIs and the timers' PPIs are frequent and rarely reconfigured. While such an interrupt is resident and
//! its list register only has to become pending, the CPU that has the vCPU loaded delivers it by
//! [`Shortcuts`], and SGIs between vCPUs go through [`PendingRequests`]; neither takes a lock. requested SGIs without
//! a shortcut go through [`Redistributor::accept`]. A CPU that changes another vCPU's redistributor, or the
//! distributor, posts a request before the kick: a vCPU without pending requests has nothing to do.
//!
//! Assigned devices' interrupts are LPIs or SPIs: [`Redistributor::pulse_resident`] makes one pending that is in a list
//! register of the vCPU that takes it, under both locks, but without a search. Other VMs send SPIs as
//! [posted](PendingRequests::post_spi) ones, and take no lock of this VM: the vCPU makes them pending by [`Shortcuts`] as
//! well, or else in the distributor.
//!
//! # Direct interrupts
//! A vCPU that has its CPU for itself can have its SGIs and timers in the physical redistributor
//! ([`Redistributor::enter_direct`], which has the table of what moves): they take no list register and no exit. Whatever the engine
//! has to do for such a vCPU begins with [`Redistributor::leave_direct`]. Requests for it are as for one that is loaded elsewhere.
//!
//! # List-register overflow
//! On overflow, list registers hold the interrupts of the highest priority, the rest waits in software, and
//! maintenance interrupts are enabled ([`Maintenance`]) until all fit again. Active interrupts can lose their
//! list register, too; their deactivation is then counted by hardware (EOImode 0) or trapped (EOImode 1:
//! [`Redistributor::deactivate`]). Without overflow, the only maintenance interrupt is for a level-sensitive
//! line still high at its end of interrupt.
//!
//! # LPIs
//! The distributor of a VM with an ITS (crate `stile-its`) has [`LPIS`] LPIs, in blocks beside those of SPIs: edge-triggered,
//! in group 1, and without an active state. The ITS says which vCPU an LPI is routed to and how it is configured
//! ([`Distributor::route_lpi`], [`Distributor::configure_lpi`]); [`Distributor::pulse`] makes one pending.
//!
//! # GICv2
//! Module [`gicv2`] has the registers of a GICv2's distributor, whose banked words are the redistributor's. The rest is the
//! same: GICH has the fields of ICH_*_EL2, and [`Config::gicv2`] what its reset state differs in. An SGI has no sender:
//! it is vCPU 0's, and those of several vCPUs are one, as in a GICv3.
//!
//! # Limits
//! With EOImode 1, a write of ICC_DIR_EL1 deactivates interrupts active on the writing vCPU. An SPI active on
//! another is deactivated only while ICC_DIR_EL1 is trapped, or by GICD_ICACTIVER.
//!
//! # Reads of state in list registers
//! The exact pending and active state of a resident interrupt is in its list register only. A read of it
//! returns [`Read::Stale`] with the vCPUs that must publish first: treat it as a kick, wait until
//! [`Distributor::unpublished`] no longer contains them (handling own kicks meanwhile), then return
//! [`Distributor::read_published`]. Writes never wait: GICD_CTLR.RWP reads as one until every affected vCPU
//! has observed them.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod affinity;
mod block;
mod claims;
mod config;
mod direct;
mod distributor;
mod engine;
mod fast_path;
mod host_priorities;
mod interface;
mod kick;
mod late;
mod lpi;
mod lr;
mod mmio;
mod redistributor;
mod saved;
mod sgi;
mod shortcuts;

pub use affinity::is_on_cpus_of_its_affinities;
pub use claims::Claims;
pub use config::{Config, SAME_PPIS};
pub use direct::{Direct, Observed};
pub use distributor::Distributor;
pub use host_priorities::{HIGHEST as HIGHEST_PRIORITY, HostPriorities};
pub use interface::{CpuInterface, ListRegisters, Maintenance, Vmcr, record_active_priority, running_priority};
pub use kick::{Delivery, Kick};
pub use late::{LateSgis, Owner};
pub use lr::{ListRegister, MAX_LIST_REGISTERS};
pub use mmio::{GICD_SIZE, GICR_SIZE, Read, Size, gicv2};
pub use redistributor::{Loaded, Redistributor};
pub use sgi::{Sgi, SgiRegister};
pub use shortcuts::{PendingRequests, Requests, Shortcuts};

/// Maximum number of vCPUs of a distributor. vCPU `n` has the affinity [`stile_board::mpidr`]`(n)`: clusters of 16.
pub const MAX_VCPUS: usize = stile_board::MAX_VCPUS;

/// Number of interrupts in a block of registers.
pub(crate) const BLOCK: usize = 32;

/// SGIs are INTIDs 0 to 15.
pub(crate) const SGIS: usize = 16;

/// Blocks of SPIs: INTIDs 32 to 255.
pub(crate) const SPI_BLOCKS: usize = 7;

/// Blocks of LPIs, after [`SPI_BLOCKS_WITH_LPIS`] blocks of SPIs.
pub(crate) const LPI_BLOCKS: usize = LPIS as usize / BLOCK;

/// Blocks of SPIs of a distributor that has LPIs.
pub(crate) const SPI_BLOCKS_WITH_LPIS: usize = 3;

/// All blocks of a distributor. The block of an interrupt is its INTID's, modulo this: for LPIs as well.
pub(crate) const BLOCKS: usize = 12;
const _: () = assert!((FIRST_LPI as usize / BLOCK - 1) % BLOCKS == SPI_BLOCKS_WITH_LPIS);
const _: () = assert!(SPI_BLOCKS <= BLOCKS && SPI_BLOCKS_WITH_LPIS + LPI_BLOCKS <= BLOCKS);

/// The first unimplemented INTID.
pub const INTID_END: u32 = (BLOCK * (SPI_BLOCKS + 1)) as u32;

/// The INTID of the first SPI.
pub const FIRST_SPI: u32 = BLOCK as u32;

/// The INTID of the first LPI.
pub const FIRST_LPI: u32 = stile_board::intid::LPI_BASE;

/// Number of LPIs of a distributor that has any (GICD_TYPER.num_LPIs).
pub const LPIS: u32 = stile_board::intid::LPI_COUNT;
