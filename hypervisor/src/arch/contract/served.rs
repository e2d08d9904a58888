//! Devices that VMs serve others; only in back ends that have them.

use stile_paging::frames::Piece;

use crate::vm;

/// Second stage of a server, and signals to the VMs on both sides of a served device.
pub trait ServedPart {
    /// Guest-physical address of the pages of events of a server's devices.
    const EVENTS: u64;

    /// Guest-physical address of the registers of a server's devices.
    #[allow(dead_code, reason = "not every back end has a fast path for registers")]
    const REGISTERS: u64;

    /// Makes a page that Stile has written visible to guests whose caches are off.
    fn clean(page: *mut u8, size: u64);

    /// Reserves tables for a part of a window on a client's RAM.
    ///
    /// # Errors
    /// Memory is insufficient, or the CPUs' second stage is too small.
    fn reserve_window(&self, part: &Piece) -> Result<(), &'static str>;

    /// Maps a part of a client's RAM into a window, if it is not mapped yet.
    fn map_window(&self, part: &Piece);

    /// Unmaps whole blocks of a window, as far as they are mapped. Translations stay valid until they are invalidated.
    fn unmap_window(&self, gpa: u64, size: u64);

    /// Maps the page with the events of a device that the VM serves.
    fn map_events(&self, page: &Piece);

    /// Begins the invalidation of the VM's translations of unmapped parts of windows on all CPUs.
    fn invalidate_windows(&self);

    /// Whether all invalidations that have begun are complete. Does not wait for other CPUs.
    fn are_windows_invalidated(&self) -> bool {
        true
    }

    /// Returns the signal that a message with this address and data is in a client; 0 if it is none that a served device sends.
    fn message(address: u64, data: u32) -> u32;

    /// Returns the signal of the events of a server's device `slot`. Not 0.
    fn event(slot: u32) -> u32;

    /// Posts a signal, under no lock but the I/O APIC's (x86-64). Returns false if it needs [`ServedPart::send`].
    fn post(vm: &'static vm::Vm, signal: u32) -> bool;

    /// Sends signals to a VM.
    fn send(vm: &'static vm::Vm, signals: impl Iterator<Item = u32>);
}
