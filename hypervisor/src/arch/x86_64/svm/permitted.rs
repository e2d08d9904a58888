//! Values of control registers and of the PAT that guests may have, whether they set them or a snapshot does.

use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vcpu::msrs::is_memory_type;

/// CR4.PAE.
pub const PAE: u64 = 1 << 5;
/// CR4.PCIDE.
pub const PCIDE: u64 = 1 << 17;
/// CR4.SMEP.
pub const SMEP: u64 = 1 << 20;
/// EFER.LME.
pub const LME: u64 = 1 << 8;
/// EFER.LMA.
pub const LMA: u64 = 1 << 10;
/// EFER.NXE.
pub const NXE: u64 = 1 << 11;
/// Bits of EFER: SCE, LME, LMA and NXE.
pub const EFER: u64 = 1 | LME | LMA | NXE;

/// Bits of CR4 that guests may set and this CPU has.
pub fn cr4() -> u64 {
    let (version, structured) = (cpuid(1, 0), cpuid(7, 0).ebx);
    let bits = [
        (version.ecx >> 17, PCIDE),
        (version.ecx >> 26, 1 << 18),
        (structured, 1 << 16),
        (structured >> 7, SMEP),
        (structured >> 20, 1 << 21),
    ];
    let lacking = bits.into_iter().filter(|(feature, _)| feature & 1 == 0).fold(0, |all, (_, bit)| all | bit);
    CR4_OWNED & !lacking
}

/// Whether a value is valid for the PAT.
pub fn is_pat(value: u64) -> bool {
    /// A memory type that MTRRs do not have.
    const UC_MINUS: u8 = 7;
    value.to_le_bytes().iter().all(|&kind| kind == UC_MINUS || is_memory_type(kind.into()))
}
