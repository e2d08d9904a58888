//! CPUID for guests.

use stile_blob::Topology;
use stile_board::pc;

use crate::arch::x86_64::host::cpuid::Table;
use crate::arch::x86_64::host::instructions::{CpuidResult, cpuid};
use crate::arch::x86_64::host::{speculation, timer};
use crate::arch::x86_64::vcpu::extended;
use crate::arch::x86_64::virt::state::{self, Field};

/// First of the hypervisor's leaves.
const HYPERVISOR: u32 = 0x4000_0000;
/// TSC frequency in kHz, in the format of other hypervisors.
const HYPERVISOR_TIMING: u32 = 0x4000_0010;
/// Signature in EBX, ECX and EDX.
const SIGNATURE: &[u8; 12] = b"StileStile\0\0";
/// First of KVM's leaves.
const KVM: u32 = 0x4000_0100;
/// Features of KVM's interface: MSR_KVM_STEAL_TIME, and the I/O APIC's destinations of 15 bits where identifiers have more than
/// eight (KVM_FEATURE_MSI_EXT_DEST_ID).
const KVM_FEATURES: u32 = KVM + 1;
const STEAL_TIME: u32 = 1 << 5;
const EXTENDED_DESTINATIONS: u32 = 1 << 15;
/// KVM's signature in EBX, ECX and EDX.
const KVM_SIGNATURE: &[u8; 12] = b"KVMKVMKVM\0\0\0";
/// Minimum of the highest basic leaf: includes those with the TSC's frequency.
const HIGHEST: u32 = 0x16;

/// Four characters of a signature.
fn signature(text: &[u8; 12], at: usize) -> u32 {
    text.get(at..at + 4).map_or(0, |four| four.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
}

const NOTHING: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

/// Leaves whose answer depends on a subleaf, the vCPU or its state.
const VARIABLE: u32 = 1 << 0x1 | 1 << 0x4 | 1 << 0x7 | 1 << 0xb | 1 << 0xd;

/// Computes the table of constant answers.
pub fn table() -> Table {
    Table::new(!VARIABLE, |leaf| answer(leaf, 0, 0, Topology::flat(1), true))
}

/// Answers CPUID with the CPU's values (the manual, "CPUID—CPU Identification"), without features that guests do not
/// have. `id`: the identifier of the vCPU's APIC. `topology`: the VM's.
pub fn answer(leaf: u32, subleaf: u32, id: u32, topology: Topology, apic_on: bool) -> CpuidResult {
    let highest = cpuid(0, 0).eax.max(HIGHEST);
    match leaf {
        HYPERVISOR => {
            CpuidResult { eax: HYPERVISOR_TIMING, ebx: signature(SIGNATURE, 0), ecx: signature(SIGNATURE, 4), edx: signature(SIGNATURE, 8) }
        }
        // KVM's interface: Linux uses the x2APIC only under hypervisors that it knows.
        KVM => CpuidResult {
            eax: KVM_FEATURES,
            ebx: signature(KVM_SIGNATURE, 0),
            ecx: signature(KVM_SIGNATURE, 4),
            edx: signature(KVM_SIGNATURE, 8),
        },
        KVM_FEATURES => {
            let extended = if pc::has_extended_destinations(topology.last_apic_id()) { EXTENDED_DESTINATIONS } else { 0 };
            CpuidResult { eax: STEAL_TIME | extended | state::KVM_FEATURES, ..NOTHING }
        }
        HYPERVISOR_TIMING => CpuidResult { eax: (timer::frequency() / 1000) as u32, ..NOTHING },
        0..HYPERVISOR if leaf > highest => NOTHING,
        0x1 => {
            /// ECX bits of guests: PCLMULQDQ, MONITOR and VMX below, and others.
            const ECX: u32 = !(1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 15);
            /// Not MCE, MTRR, MCA, DS, ACPI, HTT, TM, PBE.
            const EDX: u32 = !(1 << 7 | 1 << 12 | 1 << 14 | 1 << 21 | 1 << 22 | 1 << 28 | 1 << 29 | 1 << 31);
            /// The local APIC exists and is enabled.
            const APIC: u32 = 1 << 9;
            let own = cpuid(1, 0);
            // The number itself, although the manual allows any up to the next power of two: some software starts as
            // many CPUs.
            let vcpus = topology.per_socket().min(0xff) as u32;
            let osxsave = (state::read(Field::GUEST_CR4) >> 18 & 1) as u32;
            CpuidResult {
                eax: own.eax,
                ebx: own.ebx & 0xff00 | id << 24 | vcpus << 16,
                // The hypervisor bit is set, and those of the x2APIC and its TSC deadline, which are emulated on every CPU.
                ecx: own.ecx & ECX & !(1 << 27) | osxsave << 27 | 1 << 31 | 1 << 24 | 1 << 21,
                edx: own.edx & EDX & !APIC | u32::from(vcpus > 1) << 28 | if apic_on { APIC } else { 0 },
            }
        }
        0x4 => cache(cpuid(4, subleaf), topology),
        // ARAT: the APIC timer runs in all power states.
        0x6 => CpuidResult { eax: 1 << 2, ..NOTHING },
        0x7 if subleaf == 0 => {
            /// Of FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, AVX-512, RDSEED, ADX, SMAP, CLFLUSHOPT, CLWB, SHA.
            const EBX: u32 = 0xd10d_07a9 | 1 << 20 | 1 << 23 | 1 << 24 | 1 << 29;
            let own = cpuid(7, 0);
            let invpcid = if state::passes_invpcid() { 1 << 10 } else { 0 };
            /// Emulated on every CPU.
            const TSC_ADJUST: u32 = 1 << 1;
            CpuidResult {
                eax: 0,
                ebx: own.ebx & (EBX & !(1 << 10) | invpcid) | TSC_ADJUST,
                ecx: 0,
                edx: speculation::guests().leaf_7_of_guests(),
            }
        }
        0xb => {
            let (core, socket) = topology.apic_shifts();
            let (shift, all, kind) = match subleaf {
                0 => (core, topology.threads.into(), 1),
                1 => (socket, topology.per_socket() as u32, 2),
                _ => return CpuidResult { ecx: subleaf & 0xff, edx: id, ..NOTHING },
            };
            CpuidResult { eax: shift, ebx: all, ecx: kind << 8 | subleaf, edx: id }
        }
        // State components: the CPU's answer with the guest's XCR0 in force; no supervisor states.
        0xd => {
            let supported = extended::supported();
            match subleaf {
                0 => CpuidResult {
                    eax: supported as u32,
                    ebx: cpuid(0xd, 0).ebx,
                    ecx: extended::size(supported),
                    edx: (supported >> 32) as u32,
                },
                1 => CpuidResult { eax: cpuid(0xd, 1).eax & 0b101, ..NOTHING },
                2..63 if supported >> subleaf & 1 != 0 => cpuid(0xd, subleaf),
                _ => NOTHING,
            }
        }
        0x0 => CpuidResult { eax: highest, ..cpuid(0, 0) },
        // TSC frequency as a ratio to the crystal's: 1, with the TSC's own frequency as the crystal's.
        0x15 => match u32::try_from(timer::frequency()) {
            Ok(hz) => CpuidResult { eax: 1, ebx: 1, ecx: hz, edx: 0 },
            Err(_) => cpuid(0x15, 0),
        },
        0x16 => CpuidResult { eax: (timer::frequency() / 1_000_000) as u32, ..NOTHING },
        0x2 | 0x8000_0000 | 0x8000_0002..=0x8000_0008 => state::leaf_of_guests(leaf, cpuid(leaf, subleaf), topology),
        0x8000_0001 => {
            let rdtscp = if state::passes_rdtscp() { 0 } else { 1 << 27 };
            let own = cpuid(leaf, 0);
            CpuidResult { ecx: own.ecx & 0x121, edx: own.edx & !rdtscp, ..own }
        }
        // Performance counters, power, SGX, trace and later leaves: zero.
        _ => NOTHING,
    }
}

/// A cache (leaf 4) of a VM of this topology: private to a core, except the last level, which a socket shares.
fn cache(own: CpuidResult, topology: Topology) -> CpuidResult {
    const TYPE: u32 = 0x1f;
    const LAST_LEVEL: u32 = 3;
    if own.eax & TYPE == 0 {
        return own;
    }
    let (core, socket) = topology.apic_shifts();
    let sharing = if own.eax >> 5 & 7 >= LAST_LEVEL { socket } else { core };
    let cores = (1 << (socket - core)) - 1;
    CpuidResult { eax: own.eax & 0x3fff | ((1 << sharing) - 1) << 14 | cores << 26, ..own }
}
