//! Accesses of L2 to devices of L1, which L1 maps into L2's memory: Stile emulates the instruction with L2's memory.

use stile_ledger::RowId;
use stile_x86_decode::{Code, Fault, Outcome as Done, Refusal as Undecoded, execute};

use super::end;
use super::forward;
use super::l2_memory::{L2Memory, Refusal};
use super::l2_space::L2Space;
use super::raise::raise;
use super::rows::own_row;
use super::second_stage::{EPT_VIOLATION, LINEAR_VALID, TRANSLATED};
use super::state::{GuestVmx, to_vmcs01};
use crate::arch::x86_64::emulation::processor::Processor;
use crate::arch::x86_64::handler::complete;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::context_beside;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Origin of an access to a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Data,
    Fetch,
    /// L2's page tables, or the delivery of an event.
    Other,
}

/// Handles an EPT violation of L2 at a device of L1, with L1's address. VMCS02 is current before, VMCS01 after, and what the device did may
/// concern L1. Returns the ledger's row.
///
/// # Errors
/// The instruction is not completed, or the VM ends: the outcome of the exit.
#[cold]
pub fn violation(cpu: &mut Cpu, vmx: &mut GuestVmx, address: u64) -> Result<RowId, Outcome> {
    const FETCH: u64 = 1 << 2;
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let access = match qualification & (LINEAR_VALID | TRANSLATED) {
        _ if qualification & FETCH != 0 => Access::Fetch,
        LINEAR_VALID => Access::Other,
        _ => Access::Data,
    };
    handle(cpu, vmx, address, access, EPT_VIOLATION)
}

/// Handles an exit of an L2 without L1's EPT that accesses the page of L1's local APIC ("Exit Qualification for APIC-Access VM Exits from
/// Linear Accesses and Guest-Physical Accesses"), as [`violation`].
///
/// # Errors
/// See [`violation`].
#[cold]
pub fn apic_access(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Result<RowId, Outcome> {
    const READ: u64 = 0;
    const WRITE: u64 = 1;
    const FETCH: u64 = 2;
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let access = match qualification >> 12 & 0xf {
        READ | WRITE => Access::Data,
        FETCH => Access::Fetch,
        _ => Access::Other,
    };
    handle(cpu, vmx, cpu.apic_page << 12 | qualification & 0xfff, access, basic::APIC_ACCESS)
}

fn handle(cpu: &mut Cpu, vmx: &mut GuestVmx, address: u64, access: Access, reason: u64) -> Result<RowId, Outcome> {
    let row = own_row(cpu, reason);
    match access {
        Access::Data if !inject::was_delivering() => {}
        // No device contains code.
        Access::Fetch => return Err(raise(cpu, vmx, row, Fault::InvalidOpcode)),
        _ => return Err(end::unsupported(cpu, reason, address)),
    }
    let context = context_beside(cpu, vmx);
    let memory = L2Memory::new(cpu, vmx);
    let rip = vmcs::read(Field::GUEST_RIP);
    let linear = context.size().linear(rip, || vmcs::read(Field::GUEST_CS_BASE));
    let decoded = match (Code { memory: &memory, context: &context, linear }).decode() {
        Ok(decoded) => decoded,
        Err(Undecoded::Fault(fault)) => return Err(raise(cpu, vmx, row, fault)),
        Err(Undecoded::Unsupported) => return Err(raise(cpu, vmx, row, Fault::InvalidOpcode)),
        Err(Undecoded::Changed | Undecoded::NoMemory(_)) => {
            complete::refetch();
            return Err(Outcome::again(row));
        }
    };
    let mut processor =
        Processor { cpu: &mut *cpu, context: &context, changed: false, has_port: false, end: None, space: L2Space::new(vmx, memory) };
    let done = execute(&decoded, &mut processor, address);
    let (end, exit) = (processor.end, processor.space.take_exit());
    if let Some(end) = end {
        to_vmcs01(cpu);
        return Err(cpu.end_vm(row, end));
    }
    if let Some(Refusal::Exit { exit, linear, physical }) = exit {
        return Err(forward::forward_access(cpu, vmx, &exit, linear, physical));
    }
    match done {
        Ok(done) => {
            let is_complete = !matches!(done, Done::Changed);
            complete::finish(done, decoded.code_size().advance(rip, decoded.len()));
            if is_complete {
                vmx.trap_completed();
            }
        }
        Err(fault) => return Err(raise(cpu, vmx, row, fault)),
    }
    to_vmcs01(cpu);
    Ok(row)
}
