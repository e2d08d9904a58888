//! EPT violations: accesses to devices by any instruction (crate `stile-x86-decode`), untouched RAM, and pages
//! write-protected by `protected.rs`.

use stile_apic::offset;
use stile_bus::{Hit, Slot};
use stile_ledger::RowId;
use stile_ledger::x86_64::{self as rows, key, reason};
use stile_wire::CrashReason;
use stile_x86_decode::{FastAccess, Fault, MAX_LENGTH, Outcome as Done, Refusal, Width, execute};
use stile_x86_walk::{Kind, translate};

use super::complete::{finish, refetch};
use super::{advance_from_apic, advance_to, crash, exception};
use crate::arch::x86_64::emulation::devices::Device;
use crate::arch::x86_64::emulation::processor::{By, Own, Processor, Space};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vcpu::{cr0, inject};
use crate::arch::x86_64::virt::basic;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::cpu::{Leave, Outcome};
use crate::served::{self, Served};

/// A string instruction accessed a port, and no memory operand.
pub const NO_ADDRESS: u64 = u64::MAX;

/// Whether a guest-physical address is in the page of the vCPU's local APIC, which the vCPU can move: it is not on
/// the VM's bus, and takes precedence over it.
#[inline(always)]
fn is_local_apic(cpu: &Cpu, address: u64) -> bool {
    address >> 12 == cpu.apic_page
}

/// Offset in the local APIC's page.
fn apic_offset(address: u64) -> u32 {
    (address & 0xfff) as u32
}

/// Region of the VM's memory bus at an address. One access asks several times, and the next access is likely in the
/// same region: the last one is tried first, from whichever VM, because a region that contains the address is unique.
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
    if let Some(row) = cpu.vcpu().vm().arch.served.and_then(|served| served_row(served, device, address, write)) {
        return row;
    }
    cpu.loaded().ledger().row_for(reason::MMIO, key::page(address, write))
}

/// Reads the local APIC. A reserved register raises an APIC error, which may interrupt.
#[inline]
fn read_local_apic(cpu: &mut Cpu, address: u64) -> u64 {
    cpu.apic().read(apic_offset(address), timer::now()).into()
}

#[inline(never)]
fn write_local_apic(cpu: &mut Cpu, address: u64, value: u64) {
    let effect = cpu.apic().write(apic_offset(address), value as u32, timer::now());
    delivery::apply(cpu, effect);
}

impl<S: Space> Processor<'_, S> {
    /// Reads a device at a guest-physical address; all ones if no device claims it.
    #[inline]
    pub fn read_device(&mut self, address: u64, width: Width) -> u64 {
        if is_local_apic(self.cpu, address) {
            self.changed = true;
            return self.space.at_device(self.cpu, |cpu| read_local_apic(cpu, address));
        }
        self.read_bus(address, width)
    }

    /// Writes a device at a guest-physical address; ignored if no device claims it.
    #[inline]
    pub fn write_device(&mut self, address: u64, width: Width, value: u64) {
        self.changed = true;
        if is_local_apic(self.cpu, address) {
            return self.space.at_device(self.cpu, |cpu| write_local_apic(cpu, address, value));
        }
        self.write_bus(address, width, value);
    }

    #[cold]
    fn read_bus(&mut self, address: u64, width: Width) -> u64 {
        let Some(hit) = hit(self.cpu, address, width) else { return u64::MAX };
        self.space.at_device(self.cpu, |cpu| hit.device.read(cpu, hit.offset, width.bytes()))
    }

    #[cold]
    fn write_bus(&mut self, address: u64, width: Width, value: u64) {
        let Some(hit) = hit(self.cpu, address, width) else { return };
        let end = self.space.at_device(self.cpu, |cpu| hit.device.write(cpu, hit.offset, width.bytes(), value));
        self.end = self.end.or(end);
    }
}

/// Device on the VM's bus for an access.
fn hit(cpu: &mut Cpu, address: u64, width: Width) -> Option<Hit<Device>> {
    let slot = region(cpu, address)?;
    cpu.vcpu().vm().devices.buses.memory.access(slot, address, width.bytes())
}

/// Fast path of frequent EPT violations, which needs only the caller-saved registers.
#[unsafe(no_mangle)]
pub extern "C" fn handle_ept_violation(cpu: &mut WholeCpu) -> Outcome {
    let address = state::read(Field::GUEST_PHYSICAL);
    if !is_local_apic(cpu, address) {
        return Outcome::with_all_registers();
    }
    let offset = apic_offset(address);
    let vcpu = cpu.vcpu();
    let rip = state::read(Field::GUEST_RIP);
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

/// Slow path, with all general registers in the frame.
#[unsafe(no_mangle)]
pub extern "C" fn handle_ept_violation_full(cpu: &mut WholeCpu) -> Outcome {
    /// Bits of the exit qualification ("Exit Qualification for EPT Violations"): kind of access, whether the linear
    /// address is valid, and whether the access was to the operand rather than to a table.
    const WRITE: u64 = 1 << 1;
    const FETCH: u64 = 1 << 2;
    const LINEAR: u64 = 1 << 7;
    const NOT_WALK: u64 = 1 << 8;
    let address = state::read(Field::GUEST_PHYSICAL);
    let qualification = state::read(Field::EXIT_QUALIFICATION);
    if cpu.vcpu().vm().arch.physical(address).is_some() {
        inject::block_nmis_if_iret(qualification);
        return if cpu.vcpu().vm().is_writable(address) { protected(cpu, address) } else { first_touch(cpu, address) };
    }
    let kind = if qualification & (LINEAR | NOT_WALK) == LINEAR {
        Access::Walk(state::read(Field::GUEST_LINEAR))
    } else if qualification & FETCH != 0 {
        Access::Fetch
    } else {
        Access::Data
    };
    access(cpu, address, kind, qualification & WRITE != 0)
}

/// Origin of an access outside RAM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// An instruction's operand, or event delivery.
    Data,
    /// Instruction fetch.
    Fetch,
    /// The processor's walk for this linear address.
    Walk(u64),
}

/// Emulates an access to a guest-physical address. All general registers are in the frame.
pub fn access(cpu: &mut WholeCpu, address: u64, kind: Access, write: bool) -> Outcome {
    let is_local_apic = is_local_apic(cpu, address);
    if !is_local_apic
        && let Some(served) = cpu.vcpu().vm().arch.served
        && let Some(outcome) = served_access(cpu, served, address, kind, write)
    {
        return outcome;
    }
    let row = if is_local_apic { rows::local_apic(write) } else { row_on_bus(cpu, address, write) };
    if inject::was_delivering() || kind != Access::Data {
        return unusual(cpu, row, address, kind, write);
    }
    emulate(cpu, row, address)
}

/// Handles a first touch of a window, by filling or mapping a bounded part of a client's RAM, and a load that waits for a server: the
/// guest retries both. `None`: it is neither.
#[cold]
#[inline(never)]
fn served_access(cpu: &mut WholeCpu, served: &Served, address: u64, kind: Access, write: bool) -> Option<Outcome> {
    if served::touch(cpu.vcpu().vm(), address) {
        return Some(if inject::deliver_again() {
            exception::resume_or_leave(cpu, rows::MMIO_FIRST_TOUCH)
        } else {
            Outcome::again(rows::MMIO_FIRST_TOUCH)
        });
    }
    let is_load = kind == Access::Data && !write && !inject::was_delivering();
    if !is_load || !served.must_wait(address) {
        return None;
    }
    // As in HLT: the end of the wait wakes the vCPU, and so does each of its interrupts, which it may take before the load.
    cpu.leave = Leave::Wait;
    Some(Outcome::leave(row_on_bus(cpu, address, write)))
}

/// The ledger's row of an access to a device that is served, or to one that the VM serves.
fn served_row(served: &Served, device: Option<Device>, address: u64, write: bool) -> Option<RowId> {
    match device? {
        Device::HostBridge if served.has_bar(address) && write && served::is_kick(address) => Some(rows::MMIO_VIRTIO_KICK),
        Device::HostBridge if served.has_bar(address) => Some(rows::MMIO_VIRTIO),
        Device::ServerPages if write && served::is_completion(address) => Some(rows::MMIO_SERVER_COMPLETION),
        Device::ServerPages => Some(rows::MMIO_SERVER),
        _ => None,
    }
}

/// Handles an access other than to an instruction's operand.
#[cold]
#[inline(never)]
fn unusual(cpu: &mut WholeCpu, row: RowId, address: u64, kind: Access, write: bool) -> Outcome {
    if inject::was_delivering() {
        // A stack or descriptor table in a device: there is no instruction to emulate, and the event cannot be
        // delivered.
        if inject::double_fault() {
            return exception::resume_or_leave(cpu, row);
        }
        return crash(cpu, row, CrashReason::TripleFault, basic::EPT_VIOLATION as u64, address);
    }
    match kind {
        Access::Data => emulate(cpu, row, address),
        // Unclaimed addresses read as all ones, which is no instruction; no device contains code.
        Access::Fetch => refuse(row, Fault::InvalidOpcode),
        Access::Walk(linear) => walk(cpu, row, linear, write),
    }
}

/// Handles a guest page table outside RAM: its entries read as not present. If the guest has changed it since, the
/// processor walks again.
fn walk(cpu: &mut WholeCpu, row: RowId, linear: u64, write: bool) -> Outcome {
    let context = cpu.context();
    let processor = Processor::new(cpu, &context);
    if processor.translate(linear, write, By::Processor).is_ok() {
        return Outcome::again(row);
    }
    // The exit does not report the kind of access. An address within the longest instruction at RIP counts as its fetch.
    let fetch = linear.wrapping_sub(instruction_address()) < MAX_LENGTH as u64;
    let kind = match (fetch, write) {
        (true, _) => Kind::Fetch,
        (false, true) => Kind::Write,
        (false, false) => Kind::Read,
    };
    let access = stile_x86_walk::Access { kind, user: context.user(), smap_override: false };
    match translate(&Ram(cpu.vcpu().vm()), context.paging(), linear, access) {
        Ok(_) => Outcome::again(row),
        Err(fault) => refuse(row, fault.into()),
    }
}

/// Linear address of the vCPU's instruction.
fn instruction_address() -> u64 {
    let rip = state::read(Field::GUEST_RIP);
    if cr0::runs_64_bit_code() { rip } else { state::read(Field::GUEST_CS_BASE).wrapping_add(rip) & 0xffff_ffff }
}

/// Emulates the vCPU's instruction, which accesses a device at a guest-physical address, or a port by a string
/// operation. The registers that it names are in the frame.
pub fn emulate(cpu: &mut WholeCpu, row: RowId, address: u64) -> Outcome {
    let rip = state::read(Field::GUEST_RIP);
    let (cpu, decoder) = cpu.with_decoder();
    let (decoded, context) = match decoder.find(cpu.vcpu().vm(), rip, &cpu.vcpu().arch.decoded) {
        Ok(found) => found,
        Err(Refusal::Fault(fault)) => return refuse(row, fault),
        Err(Refusal::Changed) => {
            refetch();
            return Outcome::again(row);
        }
        Err(Refusal::Unsupported) => return refuse(row, Fault::InvalidOpcode),
        // Unmapped since the fetch: inject #UD.
        Err(Refusal::NoMemory(_)) => return refuse(row, Fault::InvalidOpcode),
    };
    let mut processor = Processor { cpu, context, changed: false, has_port: address == NO_ADDRESS, end: None, space: Own };
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
        Ok(done) => finish(done, decoded.code_size().advance(rip, decoded.len())),
        // Elements before the fault may have had effects.
        Err(fault) => _ = refuse(row, fault),
    }
    if changed {
        delivery::pull(cpu);
    }
    Outcome::again(row)
}

/// Handles a write to a page that cached instructions depend on, by the guest, or by the processor setting accessed
/// or dirty flags. Drops those instructions; the guest retries.
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

/// Fills a bounded part of untouched RAM, or tracks a write to a page of RAM that is read-only for that; the guest retries.
#[cold]
fn first_touch(cpu: &mut Cpu, address: u64) -> Outcome {
    let vm = cpu.vcpu().vm();
    if !vm.handle_write_fault(address) {
        vm.touch(address);
    }
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
