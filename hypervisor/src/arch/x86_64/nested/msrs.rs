//! VMX capability MSRs of L1.

use stile_apic::GeneralProtection;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::msr;

/// IA32_FEATURE_CONTROL: locked, with VMX enabled outside SMX.
const FEATURE_CONTROL: u64 = 1 << 0 | 1 << 2;

/// Reads an MSR that only vCPUs of nested VMs have.
#[cold]
pub fn read(cpu: &Cpu, register: u32) -> Result<u64, GeneralProtection> {
    let offer = cpu.vcpu().vm().arch.nested.as_ref().ok_or(GeneralProtection)?;
    if register == msr::IA32_FEATURE_CONTROL {
        return Ok(FEATURE_CONTROL);
    }
    offer.capabilities.msr(register).ok_or(GeneralProtection)
}
