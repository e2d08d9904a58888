//! Creation of vCPUs, and their initial registers.

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::description::Description;
use crate::error::Error;

/// Multiboot's magic number in EAX (Multiboot Specification 0.6.96, "Machine state").
const MULTIBOOT: u64 = 0x2bad_b002;

/// CPUID leaf 1, ECX: x2APIC, TSC deadline, and that there is a hypervisor, which KVM leaves to the VMM. Without the
/// last, Linux neither looks for KVM's clock nor trusts the TSC deadline of a CPU with the emulated one's microcode.
const X2APIC: u32 = 1 << 21;
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;

/// Creates vCPU `index`. All but the first wait for SIPI.
pub fn create(kvm: &Kvm, vm: &VmFd, index: u8, description: &Description) -> Result<VcpuFd, Error> {
    let vcpu = vm.create_vcpu(index.into())?;
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            0x1 => {
                entry.ebx = entry.ebx & 0x00ff_ffff | u32::from(index) << 24;
                entry.ecx |= X2APIC | TSC_DEADLINE | HYPERVISOR;
            }
            0xb => entry.edx = index.into(),
            _ => {}
        }
    }
    vcpu.set_cpuid2(&cpuid)?;
    if index == 0 {
        start(&vcpu, description)?;
    }
    Ok(vcpu)
}

/// EFER and control registers in 64-bit mode.
const CR0_PROTECTION: u64 = 1 << 0;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LONG_MODE: u64 = 0b101 << 8;

/// Sets the state in which a Multiboot loader starts a program, protected mode with flat segments, or that of Linux's 64-bit boot protocol.
fn start(vcpu: &VcpuFd, description: &Description) -> Result<(), Error> {
    let segment =
        |selector, type_| kvm_segment { base: 0, limit: u32::MAX, selector, type_, present: 1, db: 1, s: 1, g: 1, ..Default::default() };
    let (mut code, data) = (segment(0x08, 0xb), segment(0x10, 0x3));
    let mut registers = vcpu.get_sregs()?;
    registers.cr0 |= CR0_PROTECTION;
    if let Some(tables) = description.long {
        (code.l, code.db) = (1, 0);
        registers.cr0 |= CR0_PAGING;
        registers.cr3 = tables as u64;
        registers.cr4 |= CR4_PAE;
        registers.efer |= EFER_LONG_MODE;
    }
    registers.cs = code;
    for register in [&mut registers.ds, &mut registers.es, &mut registers.fs, &mut registers.gs, &mut registers.ss] {
        *register = data;
    }
    vcpu.set_sregs(&registers)?;
    // Linux takes its boot parameters from RSI.
    let (rip, rbx) = (description.entry as u64, description.tree as u64);
    vcpu.set_regs(&kvm_regs { rax: MULTIBOOT, rbx, rsi: rbx, rip, rflags: 1 << 1, ..Default::default() })?;
    Ok(())
}
