//! XSAVE state: FP, SIMD and others (the manual, "Managing State Using the XSAVE Feature Set"). It stays that of the
//! loaded vCPU while Stile, which is compiled without it, runs.

use core::arch::asm;

use crate::arch::x86_64::host::instructions::{CpuidResult, cpuid};

/// Size of an area, in bytes: x87, SSE, AVX and AVX-512 take 2,688 in the standard form.
const SIZE: usize = 4096;
/// State components available to guests: x87, SSE, AVX; the three of AVX-512.
const KNOWN: u64 = 0b1110_0111;

/// Offsets of MXCSR and of the header, and the header's size ("Layout of the XSAVE Area").
const MXCSR: usize = 24;
const HEADER: usize = 512;
const HEADER_SIZE: usize = 64;

/// Reduces XCR0 to a value that XSETBV takes.
const fn allowed(xcr0: u64) -> u64 {
    const X87: u64 = 1;
    const SSE: u64 = 1 << 1;
    const AVX: u64 = 1 << 2;
    const AVX_512: u64 = 0b111 << 5;
    let mut value = xcr0 | X87;
    if value & SSE == 0 {
        value &= !AVX;
    }
    if value & AVX == 0 || value & AVX_512 != AVX_512 {
        value &= !AVX_512;
    }
    value
}

/// Bits of MXCSR that are not reserved ("FXSAVE—Save x87 FPU, MMX Technology, and SSE State").
fn mxcsr_mask() -> u32 {
    /// Without a mask in the area, DAZ is reserved.
    const DEFAULT: u32 = 0xffbf;
    const MASK: usize = 28;
    #[repr(align(16))]
    struct Area([u8; 512]);
    let mut area = Area([0; 512]);
    // SAFETY: the area is aligned and large enough, and the registers do not change.
    unsafe { asm!("fxsave64 [{}]", in(reg) &raw mut area, options(nostack, preserves_flags)) };
    let mask = area.0[MASK..].first_chunk().map_or(0, |mask| u32::from_le_bytes(*mask));
    if mask == 0 { DEFAULT } else { mask }
}

/// State of a vCPU that is not loaded, and its XCR0.
#[repr(C, align(64))]
pub struct Extended {
    area: [u8; SIZE],
    /// The guest's XCR0.
    pub xcr0: u64,
}

impl Extended {
    /// Reset state (the manual, "Processor State Following Power-up, Reset, or INIT").
    pub fn reset(&mut self) {
        self.area.fill(0);
        // FCW and MXCSR after FNINIT and reset, in the legacy area.
        self.area[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
        self.area[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: x87 and SSE are valid.
        self.area[512] = 0b11;
        self.xcr0 = 1;
    }

    /// The area, without trailing zeros.
    pub fn saved(&self) -> &[u8] {
        stile_snapshot::zeros::trimmed(&self.area)
    }

    /// Imports an area and XCR0, untrusted input. Returns false if the area is too long.
    pub fn restore(&mut self, area: &[u8], xcr0: u64) -> bool {
        if !stile_snapshot::zeros::fill(&mut self.area, area) {
            return false;
        }
        // XRSTOR raises #GP for components that are not in XCR0, a compacted form and reserved bits ("XRSTOR").
        let (_, header) = self.area.split_at_mut(HEADER);
        for (at, byte) in header.iter_mut().take(HEADER_SIZE).enumerate() {
            *byte &= if at < 8 { supported().to_le_bytes()[at] } else { 0 };
        }
        for (byte, allowed) in self.area[MXCSR..MXCSR + 4].iter_mut().zip(mxcsr_mask().to_le_bytes()) {
            *byte &= allowed;
        }
        self.xcr0 = allowed(xcr0 & supported());
        true
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
