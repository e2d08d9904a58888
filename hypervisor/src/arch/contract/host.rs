//! The machine that Stile runs on.

use stile_blob::Mitigations;
use stile_wire::Level;

/// The machine: its memory, how a CPU idles, and how it ends.
pub trait Host {
    /// Bytes of a guest's RAM that one exit zeroes: within the bound on the length of an exit (docs/memory.md).
    const ZEROED_AT_ONCE: u64;
    /// Bytes of a guest's RAM that one exit copies from a file, likewise.
    const COPIED_AT_ONCE: u64;

    /// How Stile runs on this machine, for the operator.
    fn level() -> Level;

    /// Where physical memory is in Stile's address space. The address is in RAM; what is there may belong to somebody.
    fn physical(address: u64) -> *mut u8;

    /// Zeroes a guest's memory, so that it finds zeros also with its caches off.
    ///
    /// # Safety
    /// The caller has these bytes of the direct map for itself.
    unsafe fn zero(memory: *mut u8, length: usize);

    /// Copies data or code of a file to a guest's memory, so that it finds them also with its caches off.
    ///
    /// # Safety
    /// The caller has `to`, `length` bytes of the direct map, for itself; `from` is readable, and elsewhere.
    unsafe fn copy(to: *mut u8, from: *const u8, length: usize);

    /// Turns on the mitigations that the configuration asks for and the CPUs need. Called once, by the first CPU, before a VM is made.
    fn apply_mitigations(mitigations: Mitigations);

    /// Sleeps until an interrupt is pending; one that came before ends the wait, too. [`PhysicalCpu::idle_interrupt`](super::PhysicalCpu) follows.
    fn wait_for_interrupt();

    /// Turns the machine off. Any CPU, at any time, also in a panic: it takes no lock.
    fn power_off() -> !;
}
