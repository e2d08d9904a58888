//! Host-state area of a VMCS.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::descriptor_tables;
use crate::arch::x86_64::host::instructions::{msr, rdmsr, read_cr};
use crate::arch::x86_64::vmx::exit;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

/// Writes the host-state area, when a vCPU moves to another CPU.
pub fn write(cpu: &Cpu) {
    let fields = [
        (Field::HOST_CR0, read_cr!("cr0")),
        (Field::HOST_CR3, read_cr!("cr3")),
        (Field::HOST_CR4, read_cr!("cr4")),
        (Field::HOST_CS, crate::arch::x86_64::host::cpu::CODE.into()),
        (Field::HOST_SS, crate::arch::x86_64::host::cpu::DATA.into()),
        (Field::HOST_DS, crate::arch::x86_64::host::cpu::DATA.into()),
        (Field::HOST_ES, crate::arch::x86_64::host::cpu::DATA.into()),
        (Field::HOST_FS, 0),
        (Field::HOST_GS, 0),
        (Field::HOST_TR, crate::arch::x86_64::host::cpu::TASK.into()),
        (Field::HOST_FS_BASE, 0),
        (Field::HOST_GS_BASE, &raw const *cpu as u64),
        (Field::HOST_TR_BASE, cpu.tss_base()),
        (Field::HOST_GDTR_BASE, cpu.gdt_base()),
        (Field::HOST_IDTR_BASE, descriptor_tables::base()),
        (Field::HOST_SYSENTER_ESP, 0),
        (Field::HOST_SYSENTER_EIP, 0),
        // SAFETY: every CPU in 64-bit mode has both registers.
        (Field::HOST_EFER, unsafe { rdmsr(msr::IA32_EFER) }),
        // SAFETY: every CPU in 64-bit mode has the register.
        (Field::HOST_PAT, unsafe { rdmsr(msr::IA32_PAT) }),
        (Field::HOST_RSP, &raw const *cpu as u64),
        (Field::HOST_RIP, exit::entry_point()),
    ];
    for (field, value) in fields {
        vmcs::write(field, value);
    }
}
