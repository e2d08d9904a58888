//! Operands of L1's VMX instructions, and its memory.

use stile_nested_vmx::operand::InstructionInformation;
use stile_paging::PAGE_SIZE;
use stile_x86_decode::{Fault, SegmentName, Vcpu, Width};

use super::state::GuestVmx;
use crate::address_space;
use crate::arch::x86_64::emulation::processor::{By, Processor};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::loaded::context_beside;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

/// Reads a general register of L1. All are in the frame.
pub fn register(cpu: &Cpu, number: usize) -> u64 {
    match number & 0xf {
        gpr::RSP => vmcs::read(Field::GUEST_RSP),
        number => cpu.frame.registers[number],
    }
}

/// Writes a general register of L1.
pub fn set_register(cpu: &mut Cpu, number: usize, value: u64) {
    match number & 0xf {
        gpr::RSP => vmcs::write(Field::GUEST_RSP, value),
        number => cpu.frame.registers[number] = value,
    }
}

/// Linear address of a memory operand of `bytes` bytes.
fn linear(processor: &Processor, information: InstructionInformation, bytes: u64, write: bool) -> Result<u64, Fault> {
    let offset = information.offset(vmcs::read(Field::EXIT_QUALIFICATION), |number| register(processor.cpu, number));
    linear_at(processor, information.segment(), offset, bytes, write)
}

/// Linear address of an access at an offset in a segment (the manual, "Limit Checking in 64-bit Mode", "Segment
/// Limit").
pub fn linear_at(processor: &Processor, segment: usize, offset: u64, bytes: u64, write: bool) -> Result<u64, Fault> {
    use SegmentName::{Cs, Ds, Es, Fs, Gs, Ss};
    let name = [Es, Cs, Ss, Ds, Fs, Gs].get(segment).copied().unwrap_or(Gs);
    if cr0::runs_64_bit_code() {
        let base = if name >= Fs { processor.segment_base(name) } else { 0 };
        let linear = offset.wrapping_add(base);
        let is_canonical = processor.canonical(linear) && processor.canonical(linear.wrapping_add(bytes - 1));
        return if is_canonical { Ok(linear) } else { Err(name.fault()) };
    }
    let segment = processor.segment(name);
    if segment.admits(offset, bytes, write) { Ok(segment.base.wrapping_add(offset) & 0xffff_ffff) } else { Err(name.fault()) }
}

/// Reads a memory operand.
pub fn read_memory(cpu: &mut Cpu, vmx: &mut GuestVmx, information: InstructionInformation, bytes: &mut [u8]) -> Result<(), Fault> {
    let context = context_beside(cpu, vmx);
    let mut processor = Processor::new(cpu, &context);
    let linear = linear(&processor, information, bytes.len() as u64, false)?;
    let pieces = processor.pieces(linear, bytes.len() as u64, false, By::Instruction)?;
    processor.move_pieces(pieces, bytes, false);
    Ok(())
}

/// Writes a memory operand.
pub fn write_memory(cpu: &mut Cpu, vmx: &mut GuestVmx, information: InstructionInformation, bytes: &[u8]) -> Result<(), Fault> {
    let context = context_beside(cpu, vmx);
    let mut processor = Processor::new(cpu, &context);
    let linear = linear(&processor, information, bytes.len() as u64, true)?;
    processor.store_by(linear, bytes, By::Instruction)
}

/// Reads the operand of VMXON, VMPTRLD and VMCLEAR: a physical address.
pub fn read_pointer(cpu: &mut Cpu, vmx: &mut GuestVmx, information: InstructionInformation) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    read_memory(cpu, vmx, information, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A page of L1's RAM, by 8-byte words. L1 may write it concurrently.
#[derive(Clone, Copy)]
pub struct Page(*mut u64);

impl Page {
    const WORDS: usize = PAGE_SIZE as usize / 8;

    /// Returns the page at a page-aligned address, if it is in RAM.
    pub fn at(cpu: &Cpu, address: u64) -> Option<Page> {
        Ram(cpu.vcpu().vm()).pointer_to_write::<u64>(address & !(PAGE_SIZE - 1)).map(Page)
    }

    /// Returns the page with a physical address, which was that of a page of the loaded vCPU's RAM.
    pub fn in_machine(address: u64) -> Page {
        Page(address_space::physical(address).cast())
    }

    /// Reads a number at an offset.
    #[inline(always)]
    pub fn read_at(self, offset: usize, width: Width) -> u64 {
        // SAFETY: guest RAM, to which no reference exists, and the number is within the page.
        unsafe { shared::read(self.number(offset, width), width) }
    }

    /// Writes a number at an offset.
    #[inline(always)]
    pub fn write_at(self, offset: usize, width: Width, value: u64) {
        // SAFETY: guest RAM, to which no reference exists, and the number is within the page.
        unsafe { shared::write(self.number(offset, width), width, value) };
    }

    /// Location of a number that does not cross the page's end; at its start if it would.
    #[inline(always)]
    fn number(self, offset: usize, width: Width) -> *mut u8 {
        let is_within = offset <= (PAGE_SIZE - width.bytes()) as usize;
        self.0.cast::<u8>().wrapping_add(if is_within { offset } else { 0 })
    }

    /// Reads a word.
    #[inline(always)]
    pub fn read(self, index: usize) -> u64 {
        // SAFETY: guest RAM, to which no reference exists, and the index is within the page.
        unsafe { shared::load(self.0.add(index % Page::WORDS)) }
    }

    /// Writes a word.
    #[inline(always)]
    pub fn write(self, index: usize, value: u64) {
        // SAFETY: guest RAM, to which no reference exists, and the index is within the page.
        unsafe { shared::store(self.0.add(index % Page::WORDS), value) };
    }
}
