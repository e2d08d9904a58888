//! AMD-V for guest hypervisors: absent.

use stile_apic::GeneralProtection;
use stile_blob::Nested;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::CpuidResult;
use crate::arena::Arena;

const WHY: &str = "a VM can't have VMs of its own with AMD-V yet";

/// Memory of a vCPU.
pub const VCPU_MEMORY: u64 = 0;

/// Capabilities: there are none.
pub enum Offer {}

impl Offer {
    /// Nothing to reset.
    pub fn reset(&self) {
        match *self {}
    }

    /// CPUID of a leaf.
    pub fn cpuid(&self, _leaf: u32, _answer: CpuidResult, _vcpus: u32) -> CpuidResult {
        match *self {}
    }
}

/// Returns the capabilities for a VM.
///
/// # Errors
/// It is to have VMs of its own.
pub fn offer(nested: Nested) -> Result<Option<Offer>, &'static str> {
    if nested == Nested::Off { Ok(None) } else { Err(WHY) }
}

/// State of a vCPU: there is none.
pub enum GuestVmx {}

impl GuestVmx {
    /// Resets it.
    pub fn begin_anew(&mut self) {
        match *self {}
    }
}

/// Creates the state of a vCPU.
///
/// # Errors
/// Always: see [`offer`].
pub fn new_vcpu(_vpid: u16, _nested: Nested, _arena: &'static Arena) -> Result<&'static mut GuestVmx, &'static str> {
    Err(WHY)
}

/// Called at load.
pub fn load(_cpu: &mut Cpu, vmx: &mut GuestVmx) {
    match *vmx {}
}

/// Called at put.
pub fn put(_cpu: &mut Cpu, _vmx: Option<&mut GuestVmx>) {}

/// Called at power-off.
pub fn power_down(vmx: &mut GuestVmx) {
    match *vmx {}
}

/// Reads an MSR that only nested VMs have.
pub fn read_msr(_cpu: &Cpu, _register: u32) -> Result<u64, GeneralProtection> {
    Err(GeneralProtection)
}

/// Writes one.
pub fn write_msr(_cpu: &Cpu, _register: u32, _value: u64) -> Result<(), GeneralProtection> {
    Err(GeneralProtection)
}
