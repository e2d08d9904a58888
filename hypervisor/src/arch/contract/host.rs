//! The machine that Stile runs on.

use stile_blob::Mitigations;
use stile_wire::Level;

/// The machine: memory, idling, power.
pub trait Host {
    /// Maximum number of bytes of guest RAM that one exit zeroes, within the bound on an exit's length
    /// (docs/memory.md).
    const ZEROED_AT_ONCE: u64;
    /// Maximum number of bytes of guest RAM that one exit copies from a file.
    const COPIED_AT_ONCE: u64;
    /// Whether VMs are PCs.
    const HAS_PCS: bool;

    /// Stile's mode of operation on this machine, for the operator.
    fn level() -> Level;

    /// Address of physical memory in Stile's address space. The physical address is in RAM, which may have another
    /// owner.
    fn physical(address: u64) -> *mut u8;

    /// Zeroes guest memory, visibly to accesses with caches off.
    ///
    /// # Safety
    /// The caller has exclusive access to these bytes of the direct map.
    unsafe fn zero(memory: *mut u8, length: usize);

    /// Copies data or code of a file to guest memory, visibly to accesses with caches off.
    ///
    /// # Safety
    /// The caller has exclusive access to `to`, `length` bytes of the direct map; `from` is readable and does not
    /// overlap it.
    unsafe fn copy(to: *mut u8, from: *const u8, length: usize);

    /// Applies the configured mitigations that the CPUs need. Called once, by the boot CPU, before a VM is created.
    fn apply_mitigations(mitigations: Mitigations);

    /// Logs the machine's description, for those who compare measurements: features, errata, firmware's tables, what Stile uses. Called
    /// at most once, by the boot CPU, before a VM is created.
    fn describe();

    /// Whether UEFI firmware keeps variables for Stile: it has started a bench stick whose partition can take figures. Called at most
    /// once, by the boot CPU, before a VM is created.
    ///
    /// # Errors
    /// A description: firmware's services can't be called.
    fn prepare_variables() -> Result<bool, &'static str>;

    /// Sets a part of the figures in a variable of firmware's; without data, removes it. Called by any CPU when all VMs are off, one at a
    /// time, after [`Self::prepare_variables`] returned true.
    ///
    /// # Errors
    /// Firmware's status.
    fn set_variable(part: usize, data: &[u8]) -> Result<(), usize>;

    /// Waits for a pending interrupt, which may have arrived before.
    /// [`PhysicalCpu::idle_interrupt`](super::PhysicalCpu) is called next.
    fn wait_for_interrupt();

    /// Powers the machine off. Called by any CPU at any time, also in a panic: takes no lock.
    fn power_off() -> !;
}
