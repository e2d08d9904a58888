//! Scheduling of vCPUs on physical CPUs.
//!
//! [`Scheduler`] is a plain data structure: it decides, and the caller acts. One instance serves all CPUs, each
//! with a lock of its own ([`Locked`]). No operation allocates. Most take constant time, or time linear
//! in the VMs that want one CPU; the few that inspect other CPUs or walk a queue, such as stealing, are
//! bounded by the numbers of CPUs and vCPUs. It keeps the times at which blocked vCPUs wake (`deadline.rs`).
//!
//! # The policy
//! - Each CPU has a queue and a lock. VMs are scheduled by start-time fair queueing, by weight; the vCPUs of a VM
//!   round-robin. A VM that has used up its cap waits. docs/scheduling.md has the rules and their guarantees;
//!   `share.rs` and `cap.rs` do the accounting.
//! - A woken vCPU goes to the CPU on which it is still loaded, else to its last CPU if that is idle, else to
//!   another idle CPU of its affinity, else into its last CPU's queue.
//! - An idle CPU steals from the CPU with the highest load of a few for which vCPUs wait that may move.
//! - When a slice expires, a CPU migrates a vCPU to a CPU that is less loaded even with it, by weight. If
//!   that would merely swap their loads, it does so every few slices, with the longest-resident vCPU: three
//!   busy vCPUs on two CPUs get two thirds of a CPU each, and a vCPU asleep in an untrapped WFI does not keep
//!   a CPU while others share one.
//! - A CPU that does not answer kicks is barred: vCPUs that may use others do.
//! - A vCPU alone on its CPU needs no slice timer and no WFI trap: see [`Switch::contended`].
//!
//! # The caller's obligations
//! 1. Every operation on a CPU ([`pick_next`](Scheduler::pick_next), [`slice_end`](Scheduler::slice_end),
//!    ...) is called by that CPU and returns a [`Switch`]: the next vCPU, the registers to put and load, whether
//!    the CPU is contended, and another CPU to kick.
//! 2. **Put under the lock.** With [`Loading::Replace`], the old vCPU's registers are saved before the
//!    [`Locked`] of the operation is dropped: from then on another CPU may load that vCPU. The new vCPU's registers are
//!    loaded after that, with or without the lock. So no CPU waits for more than one operation and one put of another's.
//! 3. **Kick** means: send that CPU an interrupt. It responds with [`pick_next`](Scheduler::pick_next),
//!    before it checks its vCPU's pending interrupts. An idle CPU must not miss a kick between `pick_next` and
//!    its WFI: it keeps interrupts masked, which does not prevent the wake-up from WFI. A kick for the calling
//!    CPU itself, for work that it missed because a lock was not free, is sent, too; a [`Placement`]'s needs no interrupt
//!    if that CPU calls `pick_next` before it enters a guest. One that goes on with its guest starts a slice instead, and
//!    kicks itself if it [`may_spread`](Locked::may_spread).
//! 4. **Wake after the fact.** A waker first makes the interrupt pending and then calls
//!    [`wake`](Scheduler::wake). A wake-up that precedes the block is latched, and [`block`](Scheduler::block)
//!    then lets the vCPU continue.
//!
//! A blocked vCPU stays loaded until its CPU runs another one, so a vCPU alone on its CPU blocks and wakes
//! without put or load.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod balance;
mod bar;
mod cap;
mod cpu;
mod deadline;
mod hand_over;
mod id;
mod locked;
pub mod memory;
mod operations;
mod queue;
mod scheduler;
mod share;
mod shared;
mod switch;
mod table;
#[cfg(test)]
mod tests;
mod throttle;
mod vcpu;
mod vm;

pub use id::{CPUS, VCPUS, VcpuId};
pub use locked::Locked;
pub use scheduler::Scheduler;
pub use stile_board::{CpuId, CpuSet};
pub use switch::{Kicks, Loading, Next, Placement, StartError, State, Switch};
pub use vcpu::Times;
