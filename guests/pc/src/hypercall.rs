//! The instruction of hypercalls: VMCALL, which is undefined on AMD's processors, where it is VMMCALL.

use core::arch::x86_64::__cpuid;

/// VMMCALL.
pub const VMMCALL: [u8; 3] = [0x0f, 0x01, 0xd9];

/// The instruction, for `asm!`; [`setup`] replaces it where necessary.
#[macro_export]
macro_rules! hypercall {
    () => {
        "770: vmcall\n.pushsection .hypercalls, \"a\"\n.quad 770b\n.popsection"
    };
}

unsafe extern "C" {
    static __hypercalls: [u64; 0];
    static __hypercalls_end: [u64; 0];
}

/// Whether the processor is AMD's, which has SVM in place of VMX.
pub fn is_amds() -> bool {
    __cpuid(0).ebx.to_le_bytes() == *b"Auth"
}

/// Chooses the instruction of this processor. Before any hypercall, on one CPU.
pub fn setup() {
    if !is_amds() {
        return;
    }
    let (mut place, end) = ((&raw const __hypercalls).cast::<*mut [u8; 3]>(), (&raw const __hypercalls_end).cast());
    while place != end {
        // SAFETY: between the linker's symbols are addresses of the instructions, which are writable, as all of this program is, and are not
        // being executed.
        unsafe {
            place.read().write_volatile(VMMCALL);
            place = place.add(1);
        }
    }
}
