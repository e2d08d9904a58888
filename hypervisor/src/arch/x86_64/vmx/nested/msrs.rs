//! MSRs that only vCPUs of nested VMs have: VMX capabilities of L1, and Hyper-V's.

use stile_apic::GeneralProtection;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::msr;

/// IA32_FEATURE_CONTROL: locked, with VMX enabled outside SMX.
const FEATURE_CONTROL: u64 = 1 << 0 | 1 << 2;

/// Reads a capability MSR, IA32_FEATURE_CONTROL or a synthetic MSR.
#[cold]
pub fn read(cpu: &Cpu, register: u32) -> Result<u64, GeneralProtection> {
    let vcpu = cpu.vcpu();
    let offer = vcpu.vm().arch.nested.as_ref().ok_or(GeneralProtection)?;
    if register == msr::IA32_FEATURE_CONTROL {
        return Ok(FEATURE_CONTROL);
    }
    let synthetic = || offer.partition.as_ref()?.read(vcpu, register);
    offer.capabilities.msr(register).or_else(synthetic).ok_or(GeneralProtection)
}

/// Writes a synthetic MSR: all others are read-only.
#[cold]
pub fn write(cpu: &Cpu, register: u32, value: u64) -> Result<(), GeneralProtection> {
    let vcpu = cpu.vcpu();
    let offer = vcpu.vm().arch.nested.as_ref().ok_or(GeneralProtection)?;
    offer.partition.as_ref().ok_or(GeneralProtection)?.write(vcpu, register, value)
}
