//! Accesses to memory that the second stage does not let through: the APICs' registers, by whatever instruction (crate
//! `stile-decode`), and pages whose right to write was taken away (`protected.rs`).

use stile_apic::offset;
use stile_bus::{Hit, Slot};
use stile_decode::{FastAccess, Fault, Outcome as Done, Refusal, Width, execute};
use stile_ledger::RowId;
use stile_ledger::x86_64::{self as rows, key, reason};
use stile_wire::CrashReason;

use super::{TF, advance_from_apic, advance_to, crash, exception};
use crate::arch::x86_64::emulation::devices::Device;
use crate::arch::x86_64::emulation::processor::{By, Processor, context};
use crate::arch::x86_64::exit::{Outcome, basic};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::{timer, vmx};
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::inject;

/// A string instruction reached for a port, and for no address.
pub const NO_ADDRESS: u64 = u64::MAX;

/// Whether the vCPU's own local APIC answers at a guest-physical address. The vCPU can move it, so it is not on the VM's bus, and hides what is.
#[inline(always)]
fn is_local_apic(cpu: &Cpu, address: u64) -> bool {
    address >> 12 == cpu.apic_page
}

/// An offset in the local APIC's page.
fn apic_offset(address: u64) -> u32 {
    (address & 0xfff) as u32
}

/// The region of the VM's memory bus at an address. An access asks several times, and the next one is likely of the same region: the one that was
/// found last is tried first, whose VM need not be this one, as a region that contains the address is the only one.
fn region(cpu: &mut Cpu, address: u64) -> Option<Slot> {
    let bus = &cpu.vcpu().vm().devices.buses.memory;
    if !cpu.last_slot.is_some_and(|slot| bus.contains(slot, address)) {
        cpu.last_slot = bus.at(address);
    }
    cpu.last_slot
}

/// The ledger's row of an access to the VM's memory bus.
#[inline(never)]
fn row_on_bus(cpu: &mut Cpu, address: u64, write: bool) -> RowId {
    let device = region(cpu, address).and_then(|slot| cpu.vcpu().vm().devices.buses.memory.device(slot));
    if device == Some(Device::IoApic) {
        return rows::io_apic(write);
    }
    cpu.loaded().ledger().row_for(reason::MMIO, key::page(address, write))
}

/// Reads the local APIC. What is no register is an error, which may interrupt.
#[inline]
fn read_local_apic(cpu: &mut Cpu, address: u64) -> u64 {
    cpu.apic().read(apic_offset(address), timer::now()).into()
}

#[inline(never)]
fn write_local_apic(cpu: &mut Cpu, address: u64, value: u64) {
    let effect = cpu.apic().write(apic_offset(address), value as u32, timer::now());
    delivery::apply(cpu, effect);
}

impl Processor<'_> {
    /// Reads a device at a guest-physical address. All ones if none answers.
    #[inline]
    pub fn read_device(&mut self, address: u64, width: Width) -> u64 {
        if is_local_apic(self.cpu, address) {
            self.changed = true;
            return read_local_apic(self.cpu, address);
        }
        self.read_bus(address, width)
    }

    /// Writes a device at a guest-physical address, if one answers.
    #[inline]
    pub fn write_device(&mut self, address: u64, width: Width, value: u64) {
        self.changed = true;
        if is_local_apic(self.cpu, address) {
            return write_local_apic(self.cpu, address, value);
        }
        self.write_bus(address, width, value);
    }

    /// The device on the VM's bus that answers an access.
    fn hit(&mut self, address: u64, width: Width) -> Option<Hit<Device>> {
        let slot = region(self.cpu, address)?;
        self.cpu.vcpu().vm().devices.buses.memory.access(slot, address, width.bytes())
    }

    #[cold]
    fn read_bus(&mut self, address: u64, width: Width) -> u64 {
        self.hit(address, width).map_or(u64::MAX, |hit| hit.device.read(self.cpu, hit.offset, width.bytes()))
    }

    #[cold]
    fn write_bus(&mut self, address: u64, width: Width, value: u64) {
        let end = self.hit(address, width).and_then(|hit| hit.device.write(self.cpu, hit.offset, width.bytes(), value));
        self.end = self.end.or(end);
    }
}

/// An access that the second stage does not let through: the most frequent ones, which need no registers but those that a call may
/// change.
#[unsafe(no_mangle)]
extern "C" fn handle_ept_violation(cpu: &mut Cpu) -> Outcome {
    let address = vmcs::read(Field::GUEST_PHYSICAL);
    if !is_local_apic(cpu, address) {
        return Outcome::with_all_registers();
    }
    let offset = apic_offset(address);
    let vcpu = cpu.vcpu();
    let rip = vmcs::read(Field::GUEST_RIP);
    let (cpu, decoder) = cpu.with_decoder();
    let Some(decoded) = decoder.hit(vcpu.vm(), rip, &vcpu.arch.decoded) else { return Outcome::with_all_registers() };
    let next = rip.wrapping_add(decoded.len().into());
    match decoded.fast_path(&cpu.frame.registers, gpr::NOT_SAVED, address) {
        Some(FastAccess::Load(register)) => {
            let apic = cpu.apic();
            // Reserved offset: the slow path raises the APIC error.
            let Some(value) = apic.plain(offset).or_else(|| apic.register(offset, timer::now())) else {
                return Outcome::with_all_registers();
            };
            cpu.frame.registers[register] = value.into();
            advance_from_apic(next);
            Outcome::again(rows::local_apic(false))
        }
        Some(FastAccess::Store(value)) => {
            if offset == offset::EOI && delivery::end_at_once(cpu) {
                advance_from_apic(next);
            } else if offset == offset::ICR
                && let Some(vector) = cpu.apic().send_to_self(value)
            {
                let flags = advance_from_apic(next);
                delivery::interrupt_self(cpu, vector, flags & window::IF);
            } else {
                write_local_apic(cpu, address, value.into());
                advance_from_apic(next);
                delivery::pull(cpu);
            }
            Outcome::again(rows::local_apic(true))
        }
        None => Outcome::with_all_registers(),
    }
}

/// Handles all others, with all general registers in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_ept_violation_full(cpu: &mut Cpu) -> Outcome {
    /// In the exit qualification ("Exit Qualification for EPT Violations"): what the access was for, and whether it was by a linear address,
    /// and then not of the tables that lead there.
    const WRITE: u64 = 1 << 1;
    const FETCH: u64 = 1 << 2;
    const LINEAR: u64 = 1 << 7;
    const NOT_WALK: u64 = 1 << 8;
    let address = vmcs::read(Field::GUEST_PHYSICAL);
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    if cpu.vcpu().vm().arch.physical(address).is_some() {
        inject::block_nmis_if_iret(qualification);
        return if cpu.vcpu().vm().is_full(address) { protected(cpu, address) } else { first_touch(cpu, address) };
    }
    let kind = if qualification & (LINEAR | NOT_WALK) == LINEAR {
        Access::Walk(vmcs::read(Field::GUEST_LINEAR))
    } else if qualification & FETCH != 0 {
        Access::Fetch
    } else {
        Access::Data
    };
    access(cpu, address, kind, qualification & WRITE != 0)
}

/// Origin of an access to an address outside of RAM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// An instruction, for its operand; or the delivery of an event.
    Data,
    /// The fetch of an instruction.
    Fetch,
    /// The processor, for a guest's table on the way to this linear address.
    Walk(u64),
}

/// An access to a guest-physical address that is to be emulated. All general registers are in the frame.
pub fn access(cpu: &mut Cpu, address: u64, kind: Access, write: bool) -> Outcome {
    let row = if is_local_apic(cpu, address) { rows::local_apic(write) } else { row_on_bus(cpu, address, write) };
    if inject::was_delivering() || kind != Access::Data {
        return unusual(cpu, row, address, kind, write);
    }
    emulate(cpu, row, address)
}

/// An access that is not an instruction's, for its operand.
#[cold]
#[inline(never)]
fn unusual(cpu: &mut Cpu, row: RowId, address: u64, kind: Access, write: bool) -> Outcome {
    if inject::was_delivering() {
        // By way of a stack or a table that is a device: there is no instruction to emulate, and nothing that an event could be delivered by.
        if inject::double_fault() {
            return exception::resume_or_leave(cpu, row);
        }
        return crash(cpu, row, CrashReason::TripleFault, basic::EPT_VIOLATION as u64, address);
    }
    match kind {
        Access::Data => emulate(cpu, row, address),
        // Where there is nothing, all ones are read, which is no instruction; and no device has one.
        Access::Fetch => refuse(row, Fault::InvalidOpcode),
        Access::Walk(linear) => walk(cpu, row, linear, write),
    }
}

/// The processor has found that a table of the guest's is outside of its RAM: where nothing is present. If it is elsewhere meanwhile, it looks
/// again.
fn walk(cpu: &mut Cpu, row: RowId, linear: u64, write: bool) -> Outcome {
    let context = context(cpu);
    let processor = Processor::new(cpu, &context);
    match processor.translate(linear, write, By::Processor) {
        Ok(_) => Outcome::again(row),
        Err(fault) => refuse(row, fault),
    }
}

/// Emulates the vCPU's instruction, which accesses a device at a guest-physical address, or moves strings to and from a port. The registers
/// that the instruction names are in the frame.
pub fn emulate(cpu: &mut Cpu, row: RowId, address: u64) -> Outcome {
    let rip = vmcs::read(Field::GUEST_RIP);
    let (cpu, decoder) = cpu.with_decoder();
    let (decoded, context) = match decoder.find(cpu.vcpu().vm(), rip, &cpu.vcpu().arch.decoded) {
        Ok(found) => found,
        Err(Refusal::Fault(fault)) => return refuse(row, fault),
        Err(Refusal::Changed) => {
            refetch();
            return Outcome::again(row);
        }
        Err(Refusal::Unsupported) => return refuse(row, Fault::InvalidOpcode),
        // It was fetched a moment ago, and is no more. Nothing is no instruction.
        Err(Refusal::NoMemory(_)) => return refuse(row, Fault::InvalidOpcode),
    };
    let mut processor = Processor { cpu, context, changed: false, has_port: address == NO_ADDRESS, end: None };
    let done = execute(decoded, &mut processor, address);
    let Processor { changed, end: how, .. } = processor;
    if let Some(how) = how {
        return cpu.end_vm(row, how);
    }
    match done {
        Ok(Done::Complete) => {
            let next = decoded.code_size().advance(rip, decoded.len());
            if is_local_apic(cpu, address) {
                advance_from_apic(next);
            } else {
                advance_to(next);
            }
        }
        Ok(done) => go_on(done, decoded.code_size().advance(rip, decoded.len())),
        Err(fault) => return refuse(row, fault),
    }
    if changed {
        delivery::pull(cpu);
    }
    Outcome::again(row)
}

/// Goes on after an instruction that did not just end, and does not just go on at `next`.
#[cold]
#[inline(never)]
fn go_on(done: Done, next: u64) {
    match done {
        Done::Changed => refetch(),
        Done::Complete => _ = advance_to(next),
        Done::Jump(to) => {
            // This is a step also where only branches are.
            if advance_to(to) & TF != 0 {
                inject::pend_step();
            }
        }
        Done::Shadowed => {
            advance_to(next);
            inject::begin_shadow();
        }
        Done::Flags(flags) => {
            advance_to(next);
            vmcs::write(Field::GUEST_RFLAGS, flags);
        }
        Done::Partial => inject::pause(),
    }
}

/// The processor has run an instruction that is no more what memory has at its address: that is one which could not have ended in this exit. The
/// translation that it was fetched by may be older than the guest's tables, so that is forgotten, and the guest goes on with what is there.
#[cold]
fn refetch() {
    vmx::forget_vpid(vmcs::read(Field::VPID));
}

/// A write to a page that decoded instructions depend on: the guest's own, or the processor's that marks entries of the guest's tables
/// as accessed or dirty. What depends on it is forgotten, and the access is made anew.
#[cold]
fn protected(cpu: &mut Cpu, address: u64) -> Outcome {
    if let Some(protected) = &cpu.vcpu().vm().arch.protected {
        protected.written(address);
    }
    if inject::deliver_again() {
        return exception::resume_or_leave(cpu, rows::MMIO_PROTECTED);
    }
    Outcome::again(rows::MMIO_PROTECTED)
}

/// RAM that has no contents yet: it is filled, or a part of it, and the access is made anew.
#[cold]
fn first_touch(cpu: &mut Cpu, address: u64) -> Outcome {
    cpu.vcpu().vm().touch(address);
    if inject::deliver_again() {
        return exception::resume_or_leave(cpu, rows::MMIO_FIRST_TOUCH);
    }
    Outcome::again(rows::MMIO_FIRST_TOUCH)
}

#[cold]
fn refuse(row: RowId, fault: Fault) -> Outcome {
    if let Fault::Page(fault) = fault {
        inject::set_fault_address(fault.linear);
    }
    inject::exception(fault.vector(), fault.code());
    Outcome::again(row)
}
