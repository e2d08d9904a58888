//! Snapshots of VMs.

use core::ops::Range;

use crate::vm::Vm;

/// State of a VM at rest, in parts: records (crate `snapshot`) that its back end encodes and decodes. All methods are
/// called with the VM's power state locked, which keeps its vCPUs off every CPU.
pub trait Snapshots {
    /// Whether [`Snapshots::prepare`] does anything.
    const PREPARES: bool;

    /// Returns the reason for which no snapshot of a VM can be made, and a remedy.
    fn obstacle(vm: &Vm) -> Option<&'static str>;

    /// Number of parts.
    fn parts(vm: &Vm) -> usize;

    /// Prepares vCPUs of a paused VM, before its first part: brings state that the VM shares out of them.
    fn prepare(_vm: &'static Vm, _vcpus: Range<usize>) {}

    /// Encodes a part of a paused VM into `to`. `since`: when the VM was paused, in ticks of the counter. Returns the
    /// record's length; `None` if there is no such part.
    fn save(vm: &'static Vm, part: usize, since: u64, to: &mut [u8]) -> Option<usize>;

    /// Decodes a part, untrusted input, into a VM that has not run since its reset. Parts come in their order. `since`:
    /// when the VM's time continues, in ticks of the counter.
    ///
    /// # Errors
    /// The part can't be of a VM like this one. The VM must not run.
    fn restore(vm: &'static Vm, part: usize, since: u64, from: &[u8]) -> Result<(), &'static str>;

    /// Advances the clocks of a VM that is being restored by `ticks` of the counter: those that a pause stops, and timers
    /// of the machine's own clocks, whose time that was left has passed in part.
    fn advance(vm: &'static Vm, ticks: u64);

    /// All parts were restored: makes state that depends on several of them consistent.
    fn complete(vm: &'static Vm);

    /// Whether a vCPU of a restored VM is on.
    fn is_on(vm: &Vm, vcpu: usize) -> bool;
}
