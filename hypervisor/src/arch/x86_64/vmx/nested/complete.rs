//! Completion of VMX instructions.

use stile_nested_vmx::{Field, VmxResult};

use super::state::GuestVmx;
use crate::arch::x86_64::handler::skip_instruction;
use crate::arch::x86_64::vmx::vmcs;

/// Completes the instruction with this outcome.
pub fn complete(vmx: &mut GuestVmx, result: VmxResult) {
    if let Some(error) = result.error() {
        vmx.vmcs12.set_from_exit(Field::INSTRUCTION_ERROR, error.into());
        vmx.store_enlightened_error(error);
    }
    let flags = skip_instruction();
    let new = result.rflags(vmcs::read(Field::GUEST_RFLAGS));
    if new != flags {
        vmcs::write(Field::GUEST_RFLAGS, new);
    }
}
