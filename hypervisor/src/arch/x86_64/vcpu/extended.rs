//! XSAVE state: FP, SIMD and others (the manual, "Managing State Using the XSAVE Feature Set"). It stays that of the
//! loaded vCPU while Stile, which is compiled without it, runs.

use core::arch::asm;

use crate::arch::x86_64::host::instructions::{CpuidResult, cpuid};

/// Size of an area, in bytes: x87, SSE, AVX and AVX-512 take 2,688 in the standard form.
const SIZE: usize = 4096;
/// State components available to guests: x87, SSE, AVX; the three of AVX-512.
const KNOWN: u64 = 0b1110_0111;

/// State of a vCPU that is not loaded, and its XCR0.
#[repr(C, align(64))]
pub struct Extended {
    area: [u8; SIZE],
    /// The guest's XCR0.
    pub xcr0: u64,
}

impl Extended {
    /// Reset and INIT state (the manual, "Processor State Following Power-up, Reset, or INIT").
    pub fn reset(&mut self) {
        self.area.fill(0);
        // FCW and MXCSR after FNINIT and reset, in the legacy area.
        self.area[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
        self.area[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87 and SSE are valid.
        self.area[512] = 0b11;
        self.xcr0 = 1;
    }

    /// Loads the state.
    pub fn load(&self) {
        let area = self.area.as_ptr();
        // SAFETY: the area is aligned, has room for all components available to guests, and was written by XSAVE or
        // `reset`; XCR0 is a value that the guest could set.
        unsafe {
            if has_xsave() {
                write_xcr0(supported());
                asm!("xrstor64 [{}]", in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
                write_xcr0(self.xcr0);
            } else {
                asm!("fxrstor64 [{}]", in(reg) area, options(nostack));
            }
        }
    }

    /// Puts the state. XCR0 is known, since guests write it by an exit.
    pub fn put(&mut self) {
        let area = self.area.as_mut_ptr();
        // SAFETY: the area is aligned and has room for all components available to guests; CPUID enumerates them.
        unsafe {
            if has_xsave() {
                write_xcr0(supported());
                asm!("xsave64 [{}]", in(reg) area, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
            } else {
                asm!("fxsave64 [{}]", in(reg) area, options(nostack));
            }
        }
    }
}

fn has_xsave() -> bool {
    cpuid(1, 0).ecx & 1 << 26 != 0
}

/// State components available to guests on this CPU, as bits of XCR0.
pub fn supported() -> u64 {
    let leaf = cpuid(0xd, 0);
    (u64::from(leaf.edx) << 32 | u64::from(leaf.eax)) & KNOWN
}

/// Size of XSAVE's standard form for these components, in bytes.
pub fn size(components: u64) -> u32 {
    /// Legacy area and header.
    const LEAST: u32 = 576;
    let end = |component: u32| {
        let CpuidResult { eax: size, ebx: offset, .. } = cpuid(0xd, component);
        size + offset
    };
    (2..63).filter(|component| components >> component & 1 != 0).map(end).fold(LEAST, u32::max)
}

/// Writes XCR0.
///
/// # Safety
/// This CPU has XSAVE, and the value is one that XCR0 takes.
pub unsafe fn write_xcr0(value: u64) {
    // SAFETY: the caller guarantees XSAVE and a valid value.
    unsafe { asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags)) };
}
