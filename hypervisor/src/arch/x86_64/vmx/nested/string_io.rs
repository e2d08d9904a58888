//! INS and OUTS of L2 at a port that L1 passes to L2: the device is L1's, the memory L2's. The exit information
//! suffices, so that the instruction is not fetched.

use stile_ledger::RowId;
use stile_nested_vmx::StringIo;
use stile_nested_vmx::operand::InstructionInformation;
use stile_x86_decode::{Context, Fault, Vcpu, Width, alignment_fault};

use super::forward;
use super::l2_memory::{L2Memory, Refusal};
use super::operand::{linear_at, register, set_register};
use super::raise::raise;
use super::state::{GuestVmx, to_vmcs01};
use crate::arch::x86_64::emulation::processor::{By, Processor};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::context_beside;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Transfers one element; a repeated instruction exits again for the next. VMCS02 is current before, VMCS01 after,
/// and interrupts may be pending.
///
/// # Errors
/// Nothing was transferred, or the VM ends: the outcome of the exit.
#[cold]
pub fn move_element(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId, qualification: u64) -> Result<(), Outcome> {
    let string = StringIo::new(qualification, InstructionInformation(vmcs::read(Field::EXIT_INSTRUCTION) as u32));
    let (index, count) = (register(cpu, string.index()), register(cpu, StringIo::COUNT));
    if string.is_over(count) {
        vmx.skip_instruction();
        return Err(Outcome::again(row));
    }
    let context = context_beside(cpu, vmx);
    let pieces = linear(&Processor::new(cpu, &context), &string, index)
        .map_err(Refusal::Fault)
        .and_then(|linear| pieces(&L2Memory::new(cpu, vmx), &context, linear, &string));
    let pieces = match pieces {
        Ok(pieces) => pieces,
        Err(Refusal::Fault(fault)) => return Err(raise(cpu, vmx, row, fault)),
        Err(Refusal::Exit { exit, linear, physical }) => return Err(forward::forward_access(cpu, vmx, &exit, linear, physical)),
    };
    to_vmcs01(cpu);
    let mut processor = Processor::new(cpu, &context);
    let mut word = [0; 8];
    let width = Width::of_bytes(string.bytes);
    if string.is_in {
        word = processor.port_read(string.port, width).to_le_bytes();
    }
    let bytes = word.get_mut(..string.bytes as usize).unwrap_or_default();
    processor.move_pieces(pieces, bytes, string.is_in);
    if !string.is_in {
        processor.port_write(string.port, width, u64::from_le_bytes(word));
    }
    if let Some(end) = processor.end {
        return Err(cpu.end_vm(row, end));
    }
    vmx.enter_vmcs02(cpu);
    let (count, is_last) = string.next_count(count);
    set_register(cpu, StringIo::COUNT, count);
    set_register(cpu, string.index(), string.next_index(index, vmcs::read(Field::GUEST_RFLAGS)));
    if is_last {
        vmx.skip_instruction();
    } else {
        inject::pause();
        vmx.trap_completed();
    }
    to_vmcs01(cpu);
    Ok(())
}

/// Linear address of an element, by the index register.
fn linear(processor: &Processor, string: &StringIo, index: u64) -> Result<u64, Fault> {
    let linear = linear_at(processor, string.segment, string.offset(index), string.bytes, string.is_in)?;
    if linear & (string.bytes - 1) != 0 {
        alignment_fault(processor)?;
    }
    Ok(linear)
}

/// Splits an element into one or two pieces: L1's addresses, and lengths. VMCS02 is current.
fn pieces(memory: &L2Memory, context: &Context, linear: u64, string: &StringIo) -> Result<[(u64, u64); 2], Refusal> {
    let (len, write) = (string.bytes, string.is_in);
    let (first, left) = memory.piece(context, linear, write, By::Instruction)?;
    if left >= len {
        return Ok([(first, len), (0, 0)]);
    }
    let (second, _) = memory.piece(context, linear.wrapping_add(left), write, By::Instruction)?;
    Ok([(first, left), (second, len - left)])
}
