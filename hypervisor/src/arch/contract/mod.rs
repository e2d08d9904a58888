//! The architecture contract: what a back end provides, and what the rest of Stile may rely on.
//!
//! A back end is a folder beside this one. It defines the types `Arch`, `Cpu`, `Identity`, `Local`, `Vm` and `Vcpu`, and implements these traits for them:
//!
//! | trait | for | concern |
//! | --- | --- | --- |
//! | [`Host`] | `Arch` | the machine: memory, idling, power |
//! | [`Counter`] | `Arch` | the clock that everything is timed by |
//! | [`SerialLine`] | `Arch` | the operator's line |
//! | [`Failure`] | `Arch` | what a CPU can still say when Stile has failed |
//! | [`Platform`] | `Arch` | the machine that guests see |
//! | [`Snapshots`] | `Arch` | the state of VMs at rest |
//! | [`Layout`] | `Arch` | Stile's address space; not in the fake back end, which has none |
//! | [`PhysicalCpu`] | `Cpu` | a CPU: kicks, its timer, the vCPU that is loaded |
//! | `FunctionPart`, `SecondStage` | a function of a VM, `Vm` | PCI functions, in back ends that assign them |
//! | `ServedPart` | `Vm` | devices that VMs serve others, in back ends that have them |
//! | [`VmPart`] | `Vm` | second stage and interrupt controller of a VM |
//! | [`VcpuPart`] | `Vcpu` | registers and interrupt state of a vCPU |
//!
//! Calls are static: one back end is compiled. [`arch`](super) chooses it.
//!
//! # Order
//!
//! ```text
//! boot     first CPU: memory, line, block ── start::others ──▶ each other CPU: PhysicalCpu::join
//!          then crate::start: Host::apply_mitigations, VcpuPart::new, VmPart::tables, reserve, new
//! VM       VcpuPart::reset, set_start, load, power_down (the first) ── VmPart::reset, VcpuPart::reset (each),
//!          VcpuPart::set_start, load (the first) ── runs ── record_off (each), tear_down
//! end      the VM is off, nothing finds it, PhysicalCpu::forget_vms (each CPU); then it is dropped, and its memory is another's
//! vCPU     load ─▶ (take_interrupts ─▶ entry ─▶ exit)* ─▶ put, or power_down if it is off
//! ```
//!
//! # Rules
//!
//! - *Ownership.* A CPU's block belongs to its CPU: no other refers to it. From `load` to the end of `put` or
//!   `power_down` a vCPU's registers belong to the CPU that has it loaded; while it is off, to the holder of the lock
//!   that keeps it off, and while its VM is reset, to the CPU that resets it. Other CPUs access a vCPU through atomics and locks.
//! - *Locks.* Methods that say so are called with the schedule locked: they take no lock that is elsewhere held while
//!   the schedule is being locked, send nothing to the console, and are short.
//! - *Interrupts* are masked in Stile from exit to entry. Methods do not unmask them, except
//!   [`Host::wait_for_interrupt`] and [`PhysicalCpu::poll_interrupts`].
//! - *Time.* Work that grows with the size of a VM is done in pieces bounded by [`Host::ZEROED_AT_ONCE`] and similar
//!   constants.
//! - *The exit path* (`exit.S`, and functions that handlers call until entry) is private to the back end. It calls
//!   [`crate::cpu::leave`] for exits that lead to another vCPU or a wait, and maintains these fields of its `Cpu` for
//!   code outside: `index`, `local`, `vcpu`, `leave`, `slice_end`, `deadline`, `waiting_trapped`, `since`, `rows` and
//!   `taken`, with the types that [`fields`] states.

mod counter;
mod cpu;
mod failure;
#[cfg(target_os = "none")]
#[allow(dead_code, reason = "not every back end assigns functions")]
mod function;
mod host;
#[cfg(target_os = "none")]
mod layout;
mod line;
mod platform;
#[cfg(target_os = "none")]
mod served;
mod snapshot;
mod vcpu;
mod vm;

pub use counter::Counter;
#[allow(unused_imports, reason = "the compiler does not see its use in docs")]
pub use cpu::fields;
pub use cpu::{Kind, PhysicalCpu};
pub use failure::Failure;
#[cfg(target_os = "none")]
#[allow(unused_imports, reason = "not every back end assigns functions")]
pub use function::{Directed, FunctionPart, SecondStage};
pub use host::Host;
#[cfg(target_os = "none")]
pub use layout::Layout;
pub use line::SerialLine;
pub use platform::Platform;
#[cfg(target_os = "none")]
pub use served::ServedPart;
pub use snapshot::Snapshots;
pub use vcpu::VcpuPart;
pub use vm::VmPart;

/// Fails to compile unless the back end is complete.
const _: () = {
    const fn is_complete<
        Arch: Host + Counter + SerialLine + Failure + Platform + Snapshots,
        Cpu: PhysicalCpu,
        Vm: VmPart,
        Vcpu: VcpuPart,
    >() {
    }
    is_complete::<super::Arch, super::Cpu, super::Vm, super::Vcpu>();
    #[cfg(target_os = "none")]
    {
        const fn has_layout<Arch: Layout>() {}
        has_layout::<super::Arch>();
    }
};
