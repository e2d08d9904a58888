//! Which vCPU runs on which physical CPU, and for how long.
//!
//! [`Scheduler`] is a plain data structure: it decides, and the caller acts. One of it serves all
//! CPUs, behind one [`lock::TicketLock`]. No operation allocates or panics; most take constant
//! time or walk the VMs that want one CPU, and the few that look at other CPUs or walk a queue, such
//! as stealing, are bounded by 64 CPUs and 64 vCPUs.
//!
//! # The policy
//! - Each CPU has a queue. Between VMs it runs start-time fair queueing, by weight; within a VM,
//!   round robin. A VM with a cap waits when it has used it up. docs/scheduling.md has the rules and
//!   what they promise; `share.rs` and `cap.rs` keep the account.
//! - A woken vCPU goes to the CPU that still holds its registers, then to its last CPU if that is
//!   idle, to another idle CPU that it may use, and else into its last CPU's queue.
//! - A CPU that has nothing to do steals from the CPU with the most to do.
//! - At the end of a slice, a CPU sends a vCPU to another one that has less to do even with it, by
//!   weight. If the two would only change places, it does so every few slices, and it is the
//!   longest-resident vCPU that goes: three busy vCPUs on two CPUs get two thirds of a CPU each, and
//!   a vCPU that sleeps in an untrapped WFI does not keep a CPU for itself while others share one.
//! - A vCPU that is alone on its CPU needs no slice timer and no WFI trap: see
//!   [`Switch::contended`].
//!
//! # What the caller does
//! 1. Every operation on a CPU ([`pick_next`](Scheduler::pick_next),
//!    [`slice_end`](Scheduler::slice_end), ...) is called by that CPU and answers with a
//!    [`Switch`]: who runs next, whether the registers must be put and loaded, whether the CPU is
//!    contended, and whether another CPU must be told.
//! 2. **Put under the lock.** If the switch says [`Loading::Replace`], the old vCPU's registers are
//!    saved before the scheduler's lock is released: from then on another CPU may take that vCPU
//!    and load it. The new vCPU's registers are loaded after that, with the lock released or not.
//!    In this way no CPU ever waits for another one's put.
//! 3. **Kick** means: send that CPU an interrupt. It answers with
//!    [`pick_next`](Scheduler::pick_next), and it must do so before it looks at its vCPU's pending
//!    interrupts. An idle CPU must not miss a kick between `pick_next` and its WFI: it keeps
//!    interrupts masked, and WFI wakes up all the same. A kick for the CPU that is asking needs no
//!    interrupt: it calls `pick_next` itself before it enters a guest.
//! 4. **Wake after the fact.** A waker makes the interrupt pending first and then calls
//!    [`wake`](Scheduler::wake). A vCPU that is about to block may be woken before it does; the
//!    scheduler remembers this, and [`block`](Scheduler::block) then lets it run on.
//!
//! A vCPU that blocks stays in its CPU's registers until that CPU runs another one, so a vCPU that
//! has a CPU to itself sleeps and wakes without a put or a load.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

mod balance;
mod cap;
pub mod deadline;
mod id;
pub mod lock;
mod queue;
mod scheduler;
mod share;
mod switch;
#[cfg(test)]
mod tests;
mod throttle;

pub use balance::affinity;
pub use id::{CPUS, CpuId, CpuSet, VCPUS, VcpuId};
pub use scheduler::{Scheduler, StartError, Times};
pub use switch::{Loading, Next, Placement, State, Switch};
