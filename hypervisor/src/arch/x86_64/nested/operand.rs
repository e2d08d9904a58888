//! Operands of L1's VMX instructions, and its memory.

use stile_nested_vmx::operand::{AddressSize, InstructionInformation};
use stile_paging::PAGE_SIZE;
use stile_x86_decode::{Fault, Width};

use crate::address_space;
use crate::arch::x86_64::emulation::processor::{By, Processor, context};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;

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
fn linear(cpu: &Cpu, information: InstructionInformation, bytes: u64, write: bool) -> Result<u64, Fault> {
    let offset = information.offset(vmcs::read(Field::EXIT_QUALIFICATION), |number| register(cpu, number));
    linear_at(information.segment(), offset, information.address_size(), bytes, write)
}

/// Linear address of an access at an offset in a segment (the manual, "Limit Checking in 64-bit Mode", "Segment
/// Limit").
#[inline(always)]
pub fn linear_at(segment: usize, offset: u64, size: AddressSize, bytes: u64, write: bool) -> Result<u64, Fault> {
    const SS: usize = 2;
    const FS: usize = 4;
    const UNUSABLE: u64 = 1 << 16;
    let segment = segment.min(5);
    let fault = if segment == SS { Fault::Stack } else { Fault::Protection };
    let part = |first: Field| vmcs::read(Field(first.0 + 2 * segment as u32));
    let base = part(Field::GUEST_ES_BASE);
    if cr0::runs_64_bit_code() {
        let linear = offset.wrapping_add(if segment >= FS { base } else { 0 });
        let last = linear.wrapping_add(bytes - 1);
        let canonical = |address: u64| (address as i64) << 16 >> 16 == address as i64;
        return if canonical(linear) && canonical(last) { Ok(linear) } else { Err(fault) };
    }
    let (rights, limit) = (part(Field::GUEST_ES_RIGHTS), part(Field::GUEST_ES_LIMIT));
    let is_code = rights & 1 << 3 != 0;
    let denied = if write { is_code || rights & 1 << 1 == 0 } else { is_code && rights & 1 << 1 == 0 };
    let expands_down = !is_code && rights & 1 << 2 != 0;
    let end = offset + (bytes - 1);
    let top = if rights & 1 << 14 != 0 || size != AddressSize::Bits16 { 0xffff_ffff } else { 0xffff };
    let outside = if expands_down { offset <= limit || end > top } else { end > limit };
    if rights & UNUSABLE != 0 || denied || outside {
        return Err(fault);
    }
    Ok(base.wrapping_add(offset) & 0xffff_ffff)
}

/// Reads a memory operand.
pub fn read_memory(cpu: &mut Cpu, information: InstructionInformation, bytes: &mut [u8]) -> Result<(), Fault> {
    let linear = linear(cpu, information, bytes.len() as u64, false)?;
    let context = context(cpu);
    let mut processor = Processor::new(cpu, &context);
    let pieces = processor.pieces(linear, bytes.len() as u64, false, By::Instruction)?;
    processor.move_pieces(pieces, bytes, false);
    Ok(())
}

/// Writes a memory operand.
pub fn write_memory(cpu: &mut Cpu, information: InstructionInformation, bytes: &[u8]) -> Result<(), Fault> {
    let linear = linear(cpu, information, bytes.len() as u64, true)?;
    let context = context(cpu);
    Processor::new(cpu, &context).store_by(linear, bytes, By::Instruction)
}

/// Reads the operand of VMXON, VMPTRLD and VMCLEAR: a physical address.
pub fn read_pointer(cpu: &mut Cpu, information: InstructionInformation) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    read_memory(cpu, information, &mut bytes)?;
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
