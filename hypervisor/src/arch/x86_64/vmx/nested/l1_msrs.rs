//! L1's MSRs, for its MSR areas and for L2s that it passes some to: accessed by the handlers of L1's own accesses,
//! with VMCS01 current.

use stile_nested_vmx::Field;

use crate::arch::x86_64::handler;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::interrupts::deadline;
use crate::arch::x86_64::vcpu::inject::VALID;
use crate::arch::x86_64::vmx::vmcs;
use crate::cpu::Outcome;

/// Reads an MSR. `None` if that raises #GP.
pub fn read(cpu: &mut Cpu, register: u32) -> Option<u64> {
    access(cpu, register, 0, handler::handle_rdmsr)
}

/// Writes an MSR. Returns false if that raises #GP.
pub fn write(cpu: &mut Cpu, register: u32, value: u64) -> bool {
    if register == msr::IA32_TSC_DEADLINE {
        return write_deadline(cpu, value);
    }
    access(cpu, register, value, handler::handle_wrmsr).is_some()
}

/// Writes IA32_TSC_DEADLINE, which may be passed through: the handler assumes that writes exit.
#[cold]
fn write_deadline(cpu: &mut Cpu, value: u64) -> bool {
    deadline::reclaim(cpu);
    let done = access(cpu, msr::IA32_TSC_DEADLINE, value, handler::handle_wrmsr).is_some();
    deadline::update(cpu);
    done
}

/// Calls a handler without an instruction of L1: restores registers and RIP, and takes back an exception.
fn access(cpu: &mut Cpu, register: u32, value: u64, handler: extern "C" fn(&mut Cpu) -> Outcome) -> Option<u64> {
    const REGISTERS: [usize; 3] = [gpr::RAX, gpr::RCX, gpr::RDX];
    const EVENT: [Field; 3] = [Field::ENTRY_INTERRUPTION, Field::ENTRY_ERROR_CODE, Field::ENTRY_LENGTH];
    let (rip, flags) = (vmcs::read(Field::GUEST_RIP), vmcs::read(Field::GUEST_RFLAGS));
    // An event for L1 may wait there for L1's next instruction.
    let event = EVENT.map(vmcs::read);
    vmcs::write(Field::ENTRY_INTERRUPTION, 0);
    let before = REGISTERS.map(|number| cpu.frame.registers[number]);
    cpu.frame.registers[gpr::RCX] = register.into();
    cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
    cpu.frame.registers[gpr::RDX] = value >> 32;
    // The handler's row of the ledger is not that of this exit.
    let _ = handler(cpu);
    let read = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    for (number, value) in REGISTERS.into_iter().zip(before) {
        cpu.frame.registers[number] = value;
    }
    // Only a completed instruction advances RIP.
    let done = vmcs::read(Field::GUEST_RIP) != rip;
    vmcs::write(Field::GUEST_RIP, rip);
    vmcs::write(Field::GUEST_RFLAGS, flags);
    if event[0] & VALID != 0 || vmcs::read(Field::ENTRY_INTERRUPTION) & VALID != 0 {
        EVENT.into_iter().zip(event).for_each(|(field, value)| vmcs::write(field, value));
    }
    done.then_some(read)
}
