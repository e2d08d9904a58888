//! Exceptions of L2 that Stile's emulation raises.

use stile_ledger::RowId;
use stile_nested_vmx::intercepts;
use stile_x86_decode::Fault;

use super::forward::{self, Exit};
use super::state::GuestVmx;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Raises an exception in L2, which exits to L1 if intercepted. VMCS02 is current.
pub fn raise(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId, fault: Fault) -> Outcome {
    let code = fault.code().unwrap_or(0);
    inject::exception(fault.vector(), fault.code());
    let event = vmcs::read(Field::ENTRY_INTERRUPTION);
    let qualification = if let Fault::Page(fault) = fault { fault.linear } else { 0 };
    if intercepts::intercepts_exception(&vmx.vmcs12, event as u32, code) {
        vmcs::write(Field::ENTRY_INTERRUPTION, 0);
        let exit = Exit { reason: basic::EXCEPTION, qualification, event, code: code.into(), ..Exit::default() };
        return forward::forward(cpu, vmx, &exit);
    }
    if let Fault::Page(_) = fault {
        inject::set_fault_address(qualification);
    }
    Outcome::again(row)
}
