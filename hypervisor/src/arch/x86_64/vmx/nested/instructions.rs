//! L1's VMX instructions (the manual, "VMX Instruction Reference").

use stile_ledger::x86_64::{self as rows, key, reason};
use stile_nested_vmx::invalidate::{Invept, Invvpid, has_invept_type, has_invvpid_type, invept, invvpid};
use stile_nested_vmx::operand::InstructionInformation;
use stile_nested_vmx::shadowed::{self, READ};
use stile_nested_vmx::vmcs12::SHADOW;
use stile_nested_vmx::{Field, InstructionError, VmxResult};
use stile_x86_decode::Fault;

use super::complete::complete;
use super::control_registers::{VMXE, hold_cr0};
use super::enter::{self, processor};
use super::forward::FREQUENT;
use super::operand::{self, Page};
use super::state::{GuestVmx, Offer};
use super::vmcs02::NONE;
use crate::arch::x86_64::host::apic;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vcpu::{cr0, inject};
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension;
use crate::arch::x86_64::vmx::vmcs;
use crate::cpu::Outcome;

/// Basic exit reasons of VMX instructions.
mod number {
    use super::basic;
    pub const VMCLEAR: u64 = 19;
    pub const VMLAUNCH: u64 = 20;
    pub const VMPTRST: u64 = 22;
    pub const VMREAD: u64 = 23;
    pub const VMRESUME: u64 = basic::VMRESUME;
    pub const VMWRITE: u64 = 25;
    pub const VMXOFF: u64 = 26;
    pub const VMXON: u64 = 27;
    pub const INVEPT: u64 = basic::INVEPT as u64;
    pub const INVVPID: u64 = basic::INVVPID as u64;
}

/// Exception of an instruction.
enum Stop {
    Undefined,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Handles a VMX instruction of a guest, with all general registers in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_vmx(whole: &mut WholeCpu, reason: u64) -> Outcome {
    let reason = reason as u32 as u64;
    let (cpu, Some(vmx)) = whole.split() else {
        // The guest's CPUID hides VMX.
        inject::undefined();
        return Outcome::again(rows::absent(reason));
    };
    if matches!(reason, number::VMLAUNCH | number::VMRESUME) && check_mode(vmx, reason).is_ok() {
        let row = cpu.loaded().ledger().frequent_row_for(reason::VMX, key::instruction(reason as u32));
        match enter::enter(cpu, vmx, reason == number::VMLAUNCH, row) {
            Ok(outcome) => return outcome,
            Err(result) => {
                vmx.put_shadow();
                complete(vmx, result);
            }
        }
        return Outcome::again(row);
    }
    let key = match reason {
        number::VMREAD | number::VMWRITE => {
            let information = InstructionInformation(vmcs::read(Field::EXIT_INSTRUCTION) as u32);
            let field = Field(operand::register(cpu, information.second()) as u32);
            // Other instructions are rare, and share a row.
            let encoding = if FREQUENT.contains(&field) || shadowed::contains(field) { field.0 } else { 0 };
            key::field_access(reason as u32, encoding)
        }
        _ => key::instruction(reason as u32),
    };
    let row = cpu.loaded().ledger().row_for(reason::VMX, key);
    match execute(cpu, vmx, reason) {
        Ok(result) => complete(vmx, result),
        Err(Stop::Undefined) => inject::undefined(),
        Err(Stop::Fault(fault)) => {
            if let Fault::Page(page) = fault {
                inject::set_fault_address(page.linear);
            }
            inject::exception(fault.vector(), fault.code());
        }
    }
    Outcome::again(row)
}

/// Exceptions common to all VMX instructions except VMXON: the processor has checked those that do not depend on VMX
/// operation.
fn check_mode(vmx: &GuestVmx, reason: u64) -> Result<(), Stop> {
    // VMXE cannot be cleared in VMX operation.
    if vmx.vmxon == NONE && (reason != number::VMXON || vmcs::read(Field::CR4_SHADOW) & VMXE == 0) {
        return Err(Stop::Undefined);
    }
    if vmcs::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 != 0 {
        return Err(Fault::Protection.into());
    }
    Ok(())
}

fn execute(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64) -> Result<VmxResult, Stop> {
    check_mode(vmx, reason)?;
    let information = InstructionInformation(vmcs::read(Field::EXIT_INSTRUCTION) as u32);
    match reason {
        number::VMREAD => return read(cpu, vmx, information),
        number::VMWRITE => return write(cpu, vmx, information),
        number::INVEPT | number::INVVPID => return invalidate(cpu, vmx, reason == number::INVEPT, information),
        number::VMXOFF => {
            vmx.flush(cpu);
            vmx.vmxon = NONE;
            hold_cr0(false);
            block_init(cpu, false);
            return Ok(VmxResult::Succeed);
        }
        number::VMXON if vmx.vmxon != NONE => return Ok(VmxResult::fail(InstructionError::OnInRoot, vmx.has_vmcs())),
        // Checked before the operand is read.
        number::VMXON => check_fixed_bits(cpu, vmx)?,
        number::VMPTRST => {
            let current = vmx.current.to_le_bytes();
            operand::write_memory(cpu, vmx, information, &current)?;
            return Ok(VmxResult::Succeed);
        }
        _ => {}
    }
    let address = operand::read_pointer(cpu, vmx, information)?;
    let is_valid = address & 0xfff == 0 && address >> (cpuid(0x8000_0008, 0).eax & 0x3f) == 0;
    let fail = |error| Ok(VmxResult::fail(error, vmx.has_vmcs()));
    match reason {
        number::VMXON => on(cpu, vmx, address, is_valid),
        number::VMCLEAR if !is_valid => fail(InstructionError::ClearAddress),
        number::VMCLEAR if address == vmx.vmxon => fail(InstructionError::ClearVmxonPointer),
        number::VMCLEAR => {
            vmx.clear(cpu, address);
            Ok(VmxResult::Succeed)
        }
        _ if !is_valid => fail(InstructionError::LoadAddress),
        _ if address == vmx.vmxon => fail(InstructionError::LoadVmxonPointer),
        // VMPTRLD.
        _ => {
            let page = Page::at(cpu, address);
            let revision = page.map_or(u64::MAX, |page| page.read(0)) & 0xffff_ffff;
            let expected = u64::from(vmx.offer(cpu).map_or(0, |offer| offer.capabilities.revision()));
            // Without VMCS shadowing the shadow-VMCS indicator is part of the revision.
            if revision != expected || revision & SHADOW != 0 {
                return fail(InstructionError::LoadRevision);
            }
            if let Some(page) = page.filter(|_| vmx.current != address) {
                vmx.flush(cpu);
                vmx.current = address;
                vmx.vmcs12.load(|word| page.read(word));
                vmx.choose_vmcs02();
                vmx.fill_shadow(cpu);
                vmx.use_shadow(cpu, true);
            }
            Ok(VmxResult::Succeed)
        }
    }
}

/// Checks the control registers for VMXON ("Restrictions on VMX Operation").
fn check_fixed_bits(cpu: &Cpu, vmx: &GuestVmx) -> Result<(), Stop> {
    let Some(offer) = vmx.offer(cpu) else { return Err(Stop::Undefined) };
    let suits = |value: u64, (must, may): (u64, u64)| value & must == must && value & !may == 0;
    let (cr0, cr4) = (cr0::read(), vmcs::read(Field::GUEST_CR4));
    if suits(cr0, offer.capabilities.cr0) && suits(cr4, offer.capabilities.cr4) { Ok(()) } else { Err(Fault::Protection.into()) }
}

/// Executes VMXON outside VMX operation.
fn on(cpu: &Cpu, vmx: &mut GuestVmx, address: u64, is_valid: bool) -> Result<VmxResult, Stop> {
    let Some(offer) = vmx.offer(cpu) else { return Err(Stop::Undefined) };
    let revision = Page::at(cpu, address).map_or(u64::MAX, |page| page.read(0)) & 0xffff_ffff;
    if !is_valid || revision != offer.capabilities.revision().into() {
        return Ok(VmxResult::FailInvalid);
    }
    vmx.vmxon = address;
    vmx.current = NONE;
    hold_cr0(true);
    block_init(cpu, true);
    Ok(VmxResult::Succeed)
}

/// Blocks INIT in VMX operation ("Event Blocking"). A pending one is taken after VMXOFF.
fn block_init(cpu: &Cpu, on: bool) {
    let events = &cpu.vcpu().arch.events;
    events.block_init(on);
    if events.init() {
        apic::kick(cpu.index);
    }
}

/// Operand size of VMREAD and VMWRITE.
fn is_64() -> bool {
    cr0::runs_64_bit_code()
}

fn read(cpu: &mut Cpu, vmx: &mut GuestVmx, information: InstructionInformation) -> Result<VmxResult, Stop> {
    if !vmx.has_current() {
        return Ok(VmxResult::FailInvalid);
    }
    let Some(offer) = vmx.offer(cpu) else { return Err(Stop::Undefined) };
    let mask = if is_64() { u64::MAX } else { 0xffff_ffff };
    let encoding = operand::register(cpu, information.second()) & mask;
    if let Some((field, _)) = Field::decode(encoding)
        && vmx.is_unsaved(field)
    {
        vmx.save(cpu, [field]);
    }
    let value = match vmx.vmcs12.vmread(encoding, &offer.existing) {
        Ok(value) => value & mask,
        Err(error) => return Ok(VmxResult::fail(error.into(), true)),
    };
    if information.is_register() {
        operand::set_register(cpu, information.first(), value);
    } else {
        let bytes = value.to_le_bytes();
        operand::write_memory(cpu, vmx, information, if is_64() { &bytes } else { &bytes[..4] })?;
    }
    if let Some((field, _)) = Field::decode(encoding) {
        vmx.count_access(cpu, field);
    }
    Ok(VmxResult::Succeed)
}

fn write(cpu: &mut Cpu, vmx: &mut GuestVmx, information: InstructionInformation) -> Result<VmxResult, Stop> {
    if !vmx.has_current() {
        return Ok(VmxResult::FailInvalid);
    }
    let Some(offer) = vmx.offer(cpu) else { return Err(Stop::Undefined) };
    let mask = if is_64() { u64::MAX } else { 0xffff_ffff };
    let value = if information.is_register() {
        operand::register(cpu, information.first()) & mask
    } else {
        let mut bytes = [0; 8];
        let length = if is_64() { 8 } else { 4 };
        operand::read_memory(cpu, vmx, information, &mut bytes[..length])?;
        u64::from_le_bytes(bytes)
    };
    let encoding = operand::register(cpu, information.second()) & mask;
    // The masks determine what is saved.
    if Field::decode(encoding).is_some_and(|(field, _)| vmx.is_unsaved(field) || matches!(field, Field::CR0_MASK | Field::CR4_MASK)) {
        vmx.save_rest(cpu);
    }
    Ok(match vmx.vmcs12.vmwrite(encoding, value, &offer.existing, offer.capabilities.has_write_any()) {
        Ok(field) => {
            // The field may be in the shadow VMCS.
            if READ.contains(&field) || vmx.shadow.as_ref().is_some_and(|shadow| shadow.adopted.contains(field)) {
                vmx.collect_shadow(cpu);
                vmx.fill_shadow(cpu);
            }
            vmx.count_access(cpu, field);
            VmxResult::Succeed
        }
        Err(error) => VmxResult::fail(error.into(), true),
    })
}

/// INVEPT or INVVPID ("INVEPT—Invalidate Translations Derived from EPT").
fn invalidate(cpu: &mut Cpu, vmx: &mut GuestVmx, is_ept: bool, information: InstructionInformation) -> Result<VmxResult, Stop> {
    let mask = if is_64() { u64::MAX } else { 0xffff_ffff };
    let kind = operand::register(cpu, information.second()) & mask;
    let Some(offer) = vmx.offer(cpu) else { return Err(Stop::Undefined) };
    let has_type = if is_ept { has_invept_type } else { has_invvpid_type };
    if !has_type(kind, &offer.capabilities) {
        // Without an access to the descriptor.
        return Ok(VmxResult::fail(InstructionError::InvalidateOperand, vmx.has_vmcs()));
    }
    let mut bytes = [0; 16];
    operand::read_memory(cpu, vmx, information, &mut bytes)?;
    let (first, second) = bytes.split_at(8);
    let word = |half: &[u8]| half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let (first, second) = (word(first), word(second));
    let processor = processor(offer, vmx.address());
    let descriptor = [first, second];
    let done = if is_ept {
        invept(kind, descriptor, &processor).map(|what| match what {
            Invept::Single(pointer) => vmx.invalidate_shadows(Some(pointer)),
            Invept::All => vmx.invalidate_shadows(None),
        })
    } else {
        // The processor's VPID of L2s represents one of L1's at a time, and is invalidated as a whole.
        invvpid(kind, descriptor, &processor).map(|what| match what {
            Invvpid::Address(vpid, _) | Invvpid::Single(vpid) | Invvpid::SingleExceptGlobal(vpid) if vpid != vmx.vpid12 => {}
            _ => extension::invalidate_vpid(vmx.vpid.into()),
        })
    };
    Ok(match done {
        Ok(()) => VmxResult::Succeed,
        Err(error) => VmxResult::fail(error, vmx.has_vmcs()),
    })
}

impl GuestVmx {
    fn offer(&self, cpu: &Cpu) -> Option<&'static Offer> {
        cpu.vcpu().vm().arch.nested.as_ref()
    }

    /// Writes the current VMCS back to L1's memory, and makes none current.
    pub fn flush(&mut self, cpu: &mut Cpu) {
        if !self.has_current() {
            // Each exit has stored L2's state in an enlightened one.
            self.enlightened = None;
            return;
        }
        self.collect_shadow(cpu);
        self.use_shadow(cpu, false);
        self.save_rest(cpu);
        if let Some(page) = Page::at(cpu, self.current) {
            self.vmcs12.store(|word, value| page.write(word, value));
        }
        self.current = NONE;
    }

    /// Executes VMCLEAR.
    fn clear(&mut self, cpu: &mut Cpu, address: u64) {
        if address == self.current {
            self.vmcs12.set_launched(false);
            self.save_rest(cpu);
            self.vmcs12.set_launched(false);
            self.flush(cpu);
        } else if self.is_enlightened(cpu, address) {
            self.enlightened = self.enlightened.filter(|vmcs| vmcs.address != address);
        } else if let Some(page) = Page::at(cpu, address) {
            page.write(stile_nested_vmx::vmcs12::LAUNCH_WORD, 0);
        }
        self.drop_vmcs02(address);
    }
}
