//! Control registers of L1 in VMX operation ("Restrictions on VMX Operation"). CR4.VMXE is in the read shadow: the processor's is always set.

use stile_nested_vmx::Field;

use super::state::GuestVmx;
use super::vmcs02::NONE;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vmx::state::invalidate_translations;
use crate::arch::x86_64::vmx::{extension, vmcs};
use crate::vm::Vm;

/// CR4.VMXE.
pub const VMXE: u64 = 1 << 13;
/// Other bits of CR4.
const PSE: u64 = 1 << 4;
const PAE: u64 = 1 << 5;
const PGE: u64 = 1 << 7;
const SMEP: u64 = 1 << 20;

/// Handles a write of CR4 that changes a masked bit: VMXE, and others with it. Returns false, without effect, if it is invalid
/// ("MOV—Move to/from Control Registers").
#[cold]
pub fn write(vm: &'static Vm, vmx: Option<&mut GuestVmx>, value: u64) -> bool {
    let Some(guest) = vmx else { return false };
    let (real, shadow) = (vmcs::read(Field::GUEST_CR4), vmcs::read(Field::CR4_SHADOW));
    let old = real & CR4_OWNED | shadow & !CR4_OWNED;
    // "Restrictions on VMX Operation": VMXE cannot be cleared.
    let clears = value & VMXE == 0 && guest.vmxon != NONE;
    // Bits that the CPU lacks fail the VM entry.
    let lacking = !extension::features().cr4.1;
    if value & (!(CR4_OWNED | VMXE) | lacking) != 0 || clears || !suits(old, value) {
        return false;
    }
    vmcs::write(Field::GUEST_CR4, real & !CR4_OWNED | value & CR4_OWNED);
    if (old ^ value) & (PSE | PAE | PGE | SMEP) != 0 && !cr0::reload_pdptes(vm) {
        vmcs::write(Field::GUEST_CR4, real);
        return false;
    }
    vmcs::write(Field::CR4_SHADOW, value);
    invalidate_translations();
    true
}

/// CR0 bits that are fixed to 1 in VMX operation, and guest-owned outside of it.
const HELD_IN_VMX: u64 = cr0::PE | cr0::PG;

/// Whether the loaded vCPU may write this CR0.
#[cold]
pub fn may_write_cr0(vmx: Option<&mut GuestVmx>, value: u64) -> bool {
    let must = HELD_IN_VMX | cr0::NE;
    vmx.is_none_or(|vmx| vmx.vmxon == NONE || value & must == must)
}

/// Updates the masks when the vCPU enters or leaves VMX operation.
pub fn hold_cr0(on: bool) {
    let value = cr0::read();
    vmcs::write(Field::CR0_SHADOW, value);
    vmcs::write(Field::CR0_MASK, if on { cr0::HELD | HELD_IN_VMX } else { cr0::HELD });
}

/// Whether guest-owned bits may change so: IA-32e mode needs PAE, and PCIDE is set only in that mode, with PCID 0.
fn suits(old: u64, value: u64) -> bool {
    const PCIDE: u64 = 1 << 17;
    const LMA: u64 = 1 << 10;
    let is_long = vmcs::read(Field::GUEST_EFER) & LMA != 0;
    let sets_pcide = value & !old & PCIDE != 0;
    (!is_long || value & PAE != 0) && (!sets_pcide || is_long && vmcs::read(Field::GUEST_CR3) & 0xfff == 0)
}
