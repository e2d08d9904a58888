//! Words of a CPU that are accessed through GS while its block is borrowed ([`OfLocal`]).

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::block::OfLocal;
use crate::arch::x86_64::host::cpu::{Cpu, LOCAL, Local};

/// Offset of the VMCB's address.
pub const VMCB: usize = LOCAL + offset_of!(Local, virt) + offset_of!(OfLocal, vmcb);
const STALE: usize = LOCAL + offset_of!(Local, virt) + offset_of!(OfLocal, stale);

/// Sets the VMCB that [`super::state`] accesses.
///
/// # Safety
/// It is that of the vCPU that is being loaded here, which stays valid, or [`OfLocal::NO_VMCB`].
#[inline(always)]
pub unsafe fn set_vmcb(place: *mut u8) {
    // SAFETY: GS points to the block since `install`. The word is a shared atomic that only this CPU writes.
    unsafe { asm!("mov gs:[{AT}], {}", in(reg) place, AT = const VMCB, options(nostack, preserves_flags)) };
}

/// Records that translations of vCPUs that are not loaded are stale.
pub fn note_stale() {
    // SAFETY: GS points to the block since `install`. The byte is a shared atomic that only this CPU writes.
    unsafe { asm!("mov byte ptr gs:[{AT}], 1", AT = const STALE, options(nostack, preserves_flags)) };
}

/// Whether translations became stale since the last call.
pub fn take_stale(cpu: &Cpu) -> bool {
    cpu.local.is_some_and(|local| local.virt.stale.swap(0, Ordering::Relaxed) != 0)
}
