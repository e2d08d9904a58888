//! The virtual-machine control structure: access to the fields of the VMCS that is current on this CPU.

use core::arch::asm;

pub use stile_nested_vmx::Field;

/// Reads a field of the current VMCS; zero if there is none.
#[inline(always)]
pub fn read(field: Field) -> u64 {
    let value: u64;
    // SAFETY: this CPU is in VMX root operation (a vCPU's state is reached only while it is loaded); reading changes nothing else.
    unsafe { asm!("vmread {}, {}", out(reg) value, in(reg) u64::from(field.0), options(nomem, nostack)) };
    value
}

/// Writes a field of the current VMCS.
#[inline(always)]
pub fn write(field: Field, value: u64) {
    // SAFETY: this CPU is in VMX root operation. Only this architecture's code chooses the controls, which keep from a guest what it may not have.
    unsafe { asm!("vmwrite {}, {}", in(reg) u64::from(field.0), in(reg) value, options(nomem, nostack)) };
}

/// Makes the VMCS at a physical address the current one.
pub fn make_current(address: u64) {
    // SAFETY: the address is of a page that is a VMCS and nothing else, and no other CPU has it.
    unsafe { asm!("vmptrld [{}]", in(reg) &address, options(nostack)) };
}

/// Writes a VMCS back to its memory and forgets it, so that another CPU can make it current. It must be launched anew.
pub fn clear(address: u64) {
    // SAFETY: the address is of a page that is a VMCS and nothing else, and no other CPU has it.
    unsafe { asm!("vmclear [{}]", in(reg) &address, options(nostack)) };
}
