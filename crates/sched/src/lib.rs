//! Which vCPU runs on which physical CPU, and for how long.
//!
//! [`Scheduler`] is a plain data structure: it decides, and the caller acts. One of it serves all
//! CPUs, behind one [`lock::TicketLock`]. No operation allocates or panics; most take constant
//! time, and the few that look at other CPUs or walk a queue, such as stealing, are bounded by 64
//! CPUs and 64 vCPUs.
//!
//! # The policy
//! - Each CPU has a queue and takes from its head; who used up a slice goes to its tail. With n
//!   vCPUs on a CPU, each gets its turn within n slices, however often others block and wake.
//! - A woken vCPU goes to the CPU that still holds its registers, then to its last CPU if that is
//!   idle, to another idle CPU that it may use, and else into its last CPU's queue.
//! - A CPU that has nothing to do steals from the CPU with the most to do.
//! - At the end of a slice, a CPU that has two vCPUs more than another sends one over. If it has
//!   just one more, it does so every few slices, and it is the longest-resident vCPU that goes:
//!   three busy vCPUs on two CPUs get two thirds of a CPU each, and a vCPU that sleeps in an
//!   untrapped WFI does not keep a CPU for itself while others share one.
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
pub mod deadline;
mod id;
pub mod lock;
mod queue;
mod scheduler;
mod switch;
#[cfg(test)]
mod tests;

pub use balance::affinity;
pub use id::{CPUS, CpuId, CpuSet, VCPUS, VcpuId};
pub use scheduler::{Scheduler, StartError, Times};
pub use switch::{Loading, Next, Placement, State, Switch};
