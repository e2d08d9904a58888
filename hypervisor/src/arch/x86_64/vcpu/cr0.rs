//! CR0 of guests: fixed bits, and emulation of writes that change other masked ones (the manual, "Control
//! Registers").

use stile_x86_walk::GuestMemory;

use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::vm::Vm;

/// Bits that guests do not change.
pub const HELD: u64 = state::CR0_HELD;
/// Bits of CR0.
pub const PE: u64 = 1;
/// CR0.ET.
pub const ET: u64 = 1 << 4;
/// CR0.NE.
pub const NE: u64 = 1 << 5;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
/// CR0.CD and NW.
pub const CACHING: u64 = CD | NW;
/// CR0.PG.
pub const PG: u64 = 1 << 31;
/// CR4 bits.
const PAE: u64 = 1 << 5;
/// EFER bits.
const LMA: u64 = 1 << 10;

/// CR0 in force for a value that a guest has written: with VMX caches stay enabled, and NE set.
pub const fn allowed(value: u64) -> u64 {
    value & !state::CR0_CLEAR | state::CR0_SET | ET
}

/// Whether the loaded vCPU runs 64-bit code: EFER.LMA and CS.L.
pub fn runs_64_bit_code() -> bool {
    state::read(Field::GUEST_EFER) & LMA != 0 && has_l()
}

/// CS.L of the loaded vCPU, which legacy code may set as well, without effect.
fn has_l() -> bool {
    const L: u64 = 1 << 13;
    state::read(Field::GUEST_CS_RIGHTS) & L != 0
}

/// CR0 as the loaded guest reads it.
pub fn read() -> u64 {
    state::read(Field::GUEST_CR0) & !HELD | state::read(Field::CR0_SHADOW) & HELD
}

/// Writes CR0 for the loaded guest, whose PDPTEs are in its VM's RAM: see [`write_with`].
pub fn write(vm: &'static Vm, written: u64, kept: u64) -> bool {
    write_with(written, kept, |table| pdptes(vm, table))
}

/// Writes CR0 for the loaded guest. Bits in `kept` belong to a guest hypervisor: they keep their value, and only the
/// read shadow changes. `pdptes` reads the PDPTEs at a guest-physical address, as [`pdptes`]. Returns false if the value
/// is invalid (the manual, "MOV—Move to/from Control Registers"), or there are no PDPTEs.
#[cold]
#[inline(never)]
pub fn write_with(written: u64, kept: u64, pdptes: impl FnOnce(u64) -> Option<[u64; 4]>) -> bool {
    const LME: u64 = 1 << 8;
    const PCIDE: u64 = 1 << 17;
    /// Type of TR: a TSS of 32 or 64 bits.
    const WIDE: u64 = 1 << 3;
    let (efer, cr4) = (state::read(Field::GUEST_EFER), state::read(Field::GUEST_CR4));
    let (old, old_shadow) = (state::read(Field::GUEST_CR0), state::read(Field::CR0_SHADOW));
    let kept = kept & !HELD;
    let value = written & !kept | old & kept;
    let (opens, closes) = (value & !old & PG != 0, old & !value & PG != 0);
    let wrong = value >> 32 != 0 || value & PG != 0 && value & PE == 0 || value & NW != 0 && value & CD == 0;
    if wrong
        || opens && efer & LME != 0 && (cr4 & PAE == 0 || has_l() || state::read(Field::GUEST_TR_RIGHTS) & WIDE == 0)
        || closes && (runs_64_bit_code() || cr4 & PCIDE != 0)
    {
        return false;
    }
    if value & PG != 0 && efer & LME == 0 && cr4 & PAE != 0 && (old & PG ^ old_shadow & (CD | NW) ^ value) & (PG | CD | NW) != 0 {
        // PAE paging is enabled, or its pointers are reloaded ("PDPTE Registers").
        let Some(pointers) = pdptes(table()) else { return false };
        state::set_pdptes(pointers);
    }
    // Enabling or disabling paging with EFER.LME set changes EFER.LMA.
    if (opens || closes) && efer & LME != 0 {
        state::set_long_mode(efer, opens);
    }
    if closes {
        // "Operations that Invalidate TLBs and Paging-Structure Caches".
        state::invalidate_translations();
    }
    state::write(Field::CR0_SHADOW, written);
    state::write(Field::GUEST_CR0, allowed(value));
    true
}

/// Loads the PDPTEs after a change of CR3 under PAE paging outside IA-32e mode. Returns false, with none loaded, if
/// one has reserved bits set.
pub fn load_cr3(vm: &'static Vm) -> bool {
    if state::read(Field::GUEST_CR4) & PAE == 0 {
        return true;
    }
    let pointers = pdptes(vm, table());
    state::set_pdptes(pointers.unwrap_or_default());
    pointers.is_some()
}

/// Reloads the PDPTEs after a change of CR4, where PAE paging outside IA-32e mode uses them ("PDPTE Registers"). Returns false, with none
/// loaded, if one has reserved bits set.
pub fn reload_pdptes(vm: &'static Vm) -> bool {
    let has_paging = state::read(Field::GUEST_CR0) & PG != 0 && state::read(Field::GUEST_EFER) & LMA == 0;
    if !has_paging || state::read(Field::GUEST_CR4) & PAE == 0 {
        return true;
    }
    pdptes(vm, table()).map(state::set_pdptes).is_some()
}

/// Address of the PDPTEs.
pub fn table() -> u64 {
    state::read(Field::GUEST_CR3) & 0xffff_ffe0
}

/// Reads the PDPTEs at an address in a VM's RAM; `None` if the processor would not load them: a present one has reserved
/// bits set.
pub fn pdptes(vm: &'static Vm, table: u64) -> Option<[u64; 4]> {
    const PRESENT: u64 = 1;
    let reserved = 0b1_1110_0110 | u64::MAX << (cpuid(0x8000_0008, 0).eax & 0x3f);
    let mut pointers = [0; 4];
    for (pointer, at) in pointers.iter_mut().zip((table..).step_by(8)) {
        // Memory without RAM reads as all ones.
        *pointer = Ram(vm).read_u64(at).unwrap_or(u64::MAX);
        if state::LOADS_PDPTES && *pointer & PRESENT != 0 && *pointer & reserved != 0 {
            return None;
        }
    }
    Some(pointers)
}
