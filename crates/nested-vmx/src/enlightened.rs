//! Hyper-V's enlightened VMCS, version 1 (Microsoft, *Hypervisor Top-Level Functional Specification*, "Nested Virtualization", "Enlightened
//! VMCS"; cited as "TLFS"): a page of L1's memory in place of a VMCS. L1 reads and writes it without VMREAD and VMWRITE.
//!
//! The page is untrusted: each field is read once, to a [`Vmcs12`], which is checked and used. The clean fields are L1's statement which
//! groups of fields it has left alone; they only save readings. A field that was not read keeps the value that was checked.

pub mod clean;
mod layout;
mod region;

pub use layout::{INFORMATION, LAYOUT, Place, STORED_GUEST, STORED_INFORMATION, load, store_guest, store_information};
pub use region::Region;

use crate::capability::{Allowed, Capabilities};
use crate::controls::{entry, exit, pin, secondary};
use crate::field::Field;
use crate::vmcs12::Vmcs12;

/// Version of the layout, which is the page's revision identifier.
pub const VERSION: u32 = 1;
/// Offset of the revision identifier. The VMX-abort indicator follows at [`crate::vmcs12::ABORT_OFFSET`], as in a VMCS.
pub const REVISION_OFFSET: usize = 0;
/// Offset of the clean fields, of 32 bits.
pub const CLEAN_OFFSET: usize = 0x338;
/// Offset of the VM-instruction error, which is not copied with the exit information.
pub const ERROR_OFFSET: usize = 0x2b0;

/// Offsets in the VP assist page ("Virtual VP Assist Page").
pub mod assist {
    /// A byte: whether VM entries use an enlightened VMCS.
    pub const ENLIGHTEN_ENTRY: usize = 40;
    /// 64 bits: address of the enlightened VMCS.
    pub const CURRENT_VMCS: usize = 48;
}

/// Makes `vmcs` the contents of an enlightened VMCS that becomes active: fields that the layout lacks, and exit information, are zero. All
/// count as changed.
pub fn activate(vmcs: &mut Vmcs12, region: &impl Region) {
    *vmcs = Vmcs12::new();
    load(vmcs, region, clean::NONE);
}

/// Loads the active enlightened VMCS again, with L1's clean fields.
///
/// An exit from IA-32e mode leaves the PDPTEs undefined (SDM, "Saving Non-Register State") and need not save them, so that
/// the processor's VMCS may have others than `vmcs`. All four count as changed when L1 clears "IA-32e mode guest".
#[inline(always)]
pub fn reload(vmcs: &mut Vmcs12, region: &impl Region, clean: u32) {
    const PDPTES: [Field; 4] = [Field::GUEST_PDPTE0, Field::GUEST_PDPTE1, Field::GUEST_PDPTE2, Field::GUEST_PDPTE3];
    let is_long = |vmcs: &Vmcs12| vmcs.get32(Field::ENTRY_CONTROLS) & entry::IA32E_GUEST != 0;
    let was_long = is_long(vmcs);
    load(vmcs, region, clean);
    if was_long && !is_long(vmcs) {
        vmcs.touch_fields(&PDPTES);
    }
}

/// The capabilities offered to an L1 whose VMCSs may be enlightened: without the controls whose fields the layout lacks.
#[must_use]
pub fn capabilities(offered: Capabilities) -> Capabilities {
    const PIN: u32 = pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS;
    const SECONDARY: u32 = secondary::APIC_ACCESSES | secondary::APIC_REGISTERS | secondary::INTERRUPT_DELIVERY;
    const EXIT: u32 = exit::SAVE_PREEMPTION_TIMER;
    let without = |allowed: Allowed, controls: u32| Allowed { may: allowed.may & !(controls & !allowed.must), ..allowed };
    Capabilities {
        pin: without(offered.pin, PIN),
        secondary: without(offered.secondary, SECONDARY),
        exit: without(offered.exit, EXIT),
        ..offered
    }
}

/// Place of a field in the layout, if it has one.
pub fn place(field: Field) -> Option<&'static Place> {
    LAYOUT.iter().chain(&INFORMATION).find(|place| place.field == field)
}

#[cfg(test)]
mod tests;
