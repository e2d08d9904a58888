//! Ends of interrupts by a bit in memory, which a hypervisor sets when it injects an interrupt whose end needs no exit: KVM's interface
//! (Linux, Documentation/virt/kvm/x86/cpuid.rst and msr.rst).
//!
//! On AMD's processors only, of which each hypervisor is measured without APIC virtualization.

use core::arch::x86_64::{__cpuid, CpuidResult};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{cpu, interrupts};

/// MSR_KVM_PV_EOI_EN.
const REGISTER: u32 = 0x4b56_4d04;
const ENABLED: u64 = 1;
/// The first CPU uses its bit, and others shall use theirs.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Leaves the end of the first CPU's interrupts to its bit, if that is offered.
pub fn setup() {
    if is_offered() {
        IN_USE.store(true, Relaxed);
        interrupts::end_by_bit();
        setup_cpu(0);
    }
}

/// Names the bit of the CPU that calls, if the first one uses its own.
pub fn setup_cpu(cpu: usize) {
    if IN_USE.load(Relaxed) {
        cpu::wrmsr(REGISTER, cpu::eoi_address(cpu) | ENABLED);
    }
}

fn leaf(number: u32) -> CpuidResult {
    // SAFETY: CPUID writes only four registers, which are outputs.
    #[allow(unused_unsafe, reason = "it is no longer unsafe in newer compilers")]
    unsafe {
        __cpuid(number)
    }
}

fn is_offered() -> bool {
    const HYPERVISOR: u32 = 1 << 31;
    const KVM_FEATURE_PV_EOI: u32 = 1 << 6;
    /// The hypervisor's leaves begin at one of these.
    const BASES: [u32; 2] = [0x4000_0000, 0x4000_0100];
    let is_kvms = |base: &u32| {
        let leaf = leaf(*base);
        [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).as_flattened() == b"KVMKVMKVM\0\0\0"
    };
    leaf(0).ebx.to_le_bytes() == *b"Auth"
        && leaf(1).ecx & HYPERVISOR != 0
        && BASES.iter().find(|base| is_kvms(base)).is_some_and(|base| leaf(base + 1).eax & KVM_FEATURE_PV_EOI != 0)
}
