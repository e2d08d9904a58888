//! Access to fields of the current VMCS.

use core::arch::asm;

pub use stile_nested_vmx::Field;

/// Reads a field of the current VMCS; zero if it does not exist.
#[inline(always)]
pub fn read(field: Field) -> u64 {
    let value: u64;
    // SAFETY: this CPU is in VMX root operation, since vCPU state is accessed only while loaded; reading has no side
    // effect.
    unsafe { asm!("vmread {}, {}", out(reg) value, in(reg) u64::from(field.0), options(nomem, nostack)) };
    value
}

/// Writes a field of the current VMCS.
#[inline(always)]
pub fn write(field: Field, value: u64) {
    // SAFETY: this CPU is in VMX root operation. Only this back end chooses controls, which confine the guest.
    unsafe { asm!("vmwrite {}, {}", in(reg) u64::from(field.0), in(reg) value, options(nomem, nostack)) };
}

/// Reads a field of the current VMCS into element `AT` of an array; leaves it if the field does not exist.
#[inline(always)]
pub fn read_to<const AT: usize, const N: usize>(field: Field, values: &mut [u64; N]) {
    const { assert!(AT < N) };
    // SAFETY: as of `read`; the element is in the array.
    unsafe { asm!("vmread [{} + {AT}], {}", in(reg) values.as_mut_ptr(), in(reg) u64::from(field.0), AT = const 8 * AT, options(nostack)) };
}

/// Writes a field of the current VMCS from element `AT` of an array.
#[inline(always)]
pub fn write_from<const AT: usize, const N: usize>(field: Field, values: &[u64; N]) {
    const { assert!(AT < N) };
    // SAFETY: as of `write`; the element is in the array.
    unsafe {
        asm!("vmwrite {}, [{} + {AT}]", in(reg) u64::from(field.0), in(reg) values.as_ptr(), AT = const 8 * AT, options(readonly, nostack));
    }
}

/// Makes the VMCS at a physical address current. Exits of L2 do so several times: the operand stays in its place.
#[inline(always)]
pub fn make_current(address: &u64) {
    // SAFETY: the page at the address is used only as a VMCS, and no other CPU has it.
    unsafe { asm!("vmptrld [{}]", in(reg) address, options(readonly, nostack)) };
}

/// Returns the address of the current VMCS, if any (VMPTRST).
pub fn current() -> Option<u64> {
    let mut address = u64::MAX;
    // SAFETY: this CPU is in VMX root operation, and the instruction writes eight bytes there.
    unsafe { asm!("vmptrst [{}]", in(reg) &raw mut address, options(nostack)) };
    (address != u64::MAX).then_some(address)
}

/// Clears a VMCS (VMCLEAR), so that another CPU can make it current. Its next entry is VMLAUNCH.
#[inline(always)]
pub fn clear(address: &u64) {
    // SAFETY: the page at the address is used only as a VMCS, and no other CPU has it.
    unsafe { asm!("vmclear [{}]", in(reg) address, options(nostack)) };
}
