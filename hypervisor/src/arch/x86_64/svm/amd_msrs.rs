//! MSRs that guests have with AMD-V only ("MSR Cross-Reference").

use stile_apic::GeneralProtection;
use stile_svm::Field;

use super::permitted::is_pat;
use super::{control_registers, kvm_clock, paravirtual_eoi, state};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::msr;
use crate::vm::Vcpu;

/// Registers that read as zero and ignore writes: guests access them on processors of AMD's without checking CPUID.
const CONSTANT: [u32; 12] = [
    0xc001_0010, // SYSCFG
    0xc001_0015, // HWCR
    0xc001_001a, // TOP_MEM
    0xc001_001d, // TOM2
    0xc001_001f, // NB_CFG
    0xc001_0055, // interrupt pending
    0xc001_0140, // OSVW_ID_LENGTH
    0xc001_0141, // OSVW_STATUS
    0xc001_1022, // DC_CFG
    0xc001_1023, // BU_CFG2
    0xc001_1029, // DE_CFG
    0xc001_102a, // BU_CFG
];

/// Whether a register may be one of these. One or two comparisons exclude the APIC's, the most frequent ones.
#[inline(always)]
pub fn may_have(register: u32) -> bool {
    /// The lowest of them but for the PAT.
    const FIRST: u32 = kvm_clock::WALL_CLOCK;
    register >= FIRST || register == msr::IA32_PAT
}

/// Reads a register; `None` if it is not one of these.
pub fn read(vcpu: &Vcpu, register: u32) -> Option<u64> {
    match register {
        msr::IA32_EFER => Some(control_registers::efer()),
        msr::IA32_PAT => Some(state::read(Field::GUEST_PAT)),
        _ if CONSTANT.contains(&register) => Some(0),
        paravirtual_eoi::REGISTER => Some(vcpu.arch.msrs.eoi.register()),
        _ => kvm_clock::read(vcpu, register),
    }
}

/// Writes the PAT of the loaded vCPU. It exits, since QEMU does not load it from the VMCB: vCPUs that share a CPU would have one.
fn write_pat(value: u64) -> Result<(), GeneralProtection> {
    if !is_pat(value) {
        return Err(GeneralProtection);
    }
    state::write(Field::GUEST_PAT, value);
    Ok(())
}

/// Writes MSR_KVM_PV_EOI_EN of the loaded vCPU, whose APIC uses the new bit from now on.
fn write_eoi(cpu: &mut Cpu, value: u64) -> Result<(), GeneralProtection> {
    let vcpu = cpu.vcpu();
    let (register, vm) = (&vcpu.arch.msrs.eoi, vcpu.vm());
    if !register.write(vm, value) {
        return Err(GeneralProtection);
    }
    cpu.apic().set_eoi_bit(register.bit(vm));
    Ok(())
}

/// Writes one.
pub fn write(cpu: &mut Cpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    match register {
        msr::IA32_EFER => Some(control_registers::write_efer(value)),
        msr::IA32_PAT => Some(write_pat(value)),
        _ if CONSTANT.contains(&register) => Some(Ok(())),
        paravirtual_eoi::REGISTER => Some(write_eoi(cpu, value)),
        _ => kvm_clock::write(cpu.vcpu(), register, value),
    }
}
