//! Identity of a CPU, by which guests recognise its features, and its capacity: by CPUID (the manual, "CPUID—CPU Identification").

use super::instructions::{CpuidResult, cpuid};

/// Leaves and subleaves with features. Those of leaf 1 are without the APIC's ID, and OSXSAVE, which is the operating
/// system's.
const LEAVES: [(u32, u32); 8] = [(0x1, 0), (0x7, 0), (0x7, 1), (0xd, 0), (0xd, 1), (0x14, 0), (0x8000_0001, 0), (0x8000_0008, 0)];
const OSXSAVE: u32 = 1 << 27;
/// The leaf with the type of a hybrid processor's core in EAX\[31:24\].
const HYBRID: u32 = 0x1a;

/// Answers of CPUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity([[u32; 4]; LEAVES.len()]);

impl Identity {
    /// Asks the calling CPU.
    pub fn read() -> Self {
        Self(LEAVES.map(|(leaf, subleaf)| {
            if leaf > cpuid(leaf & 0x8000_0000, 0).eax {
                return [0; 4];
            }
            let CpuidResult { eax, ebx, ecx, edx } = cpuid(leaf, subleaf);
            match leaf {
                0x1 => [eax, 0, ecx & !OSXSAVE, edx],
                // EBX and ECX have sizes for the components that are enabled.
                0xd => [eax, 0, 0, edx],
                // ECX has the number of CPUs.
                0x8000_0008 => [eax, ebx, 0, 0],
                _ => [eax, ebx, ecx, edx],
            }
        }))
    }
}

/// The calling CPU's capacity in a hybrid processor: 2 for a performance core, 1 for an efficient one. 0 in others.
pub fn capacity() -> u32 {
    if HYBRID > cpuid(0, 0).eax {
        return 0;
    }
    match cpuid(HYBRID, 0).eax >> 24 {
        0x40 => 2,
        0x20 => 1,
        _ => 0,
    }
}
