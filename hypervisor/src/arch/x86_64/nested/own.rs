//! Exits of L2 that Stile handles, and events that L2 is interrupted for.

use stile_ledger::RowId;
use stile_nested_vmx::Field;

use super::end::unsupported;
use super::forward::{self, Exit};
use super::of_l1;
use super::rows::own_row;
use super::state::{GuestVmx, to_vmcs01};
use super::string_io;
use crate::arch::x86_64::emulation::ports;
use crate::arch::x86_64::exit::{Outcome, basic};
use crate::arch::x86_64::handler::{self, skip_instruction};
use crate::arch::x86_64::host::cpu::{Cpu, Launch, gpr};
use crate::arch::x86_64::host::vmcs;
use crate::arch::x86_64::host::vmx::{exit, pin, primary, secondary};
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::interrupts::window::{self, VALID};
use crate::arch::x86_64::vcpu::{cr0, inject};
use stile_blob::ApicVirtualization;

const HLT: u64 = basic::HLT as u64;
const IO: u64 = basic::IO as u64;
const RDMSR: u64 = basic::RDMSR as u64;
const WRMSR: u64 = basic::WRMSR as u64;
const EPT_VIOLATION: u64 = basic::EPT_VIOLATION as u64;
/// The type of an NMI, in fields that tell of events.
const TYPE: u64 = 7 << 8;
const NMI: u64 = 2 << 8;
/// The activity state HLT.
const HALTED: u64 = 1;

impl GuestVmx {
    /// Whether L1 has tables for L2's second stage.
    pub fn has_ept(&self) -> bool {
        self.secondary12() & secondary::EPT != 0
    }
}

/// An exit of L2 that is Stile's, with VMCS02 current.
pub fn handle(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64) -> Outcome {
    let row = own_row(cpu, reason);
    match reason {
        basic::EXCEPTION => return exception(cpu, vmx, row),
        basic::INTERRUPT_WINDOW => {
            vmx.set_own_window(false);
            to_vmcs01(cpu);
            return go_on(cpu, vmx, Outcome::again(row));
        }
        // The processor waits, and every physical interrupt exits.
        HLT => {
            skip_instruction();
            vmcs::write(Field::GUEST_ACTIVITY, HALTED);
        }
        basic::WBINVD => _ = skip_instruction(),
        basic::MWAIT | basic::MONITOR => inject::undefined(),
        basic::CONTROL_REGISTER => control_register(cpu, vmx),
        IO => return port(cpu, vmx, row),
        RDMSR | WRMSR => return msr(cpu, vmx, row, reason == WRMSR),
        EPT_VIOLATION => return violation(cpu, row),
        basic::RDPMC => inject::general_protection(),
        // Nobody's, as for L1.
        basic::INIT => {}
        _ => return unsupported(cpu, reason, 0),
    }
    Outcome::again(row)
}

/// A physical interrupt, with VMCS02 current.
pub fn interrupt(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Outcome {
    let vector = vmcs::read(Field::EXIT_INTERRUPTION) as u8;
    inject::deliver_again();
    to_vmcs01(cpu);
    let outcome = handler::handle_interrupt(cpu, vector);
    go_on(cpu, vmx, outcome)
}

/// Goes on after an exit whose handler had VMCS01, which is current.
fn go_on(cpu: &mut Cpu, vmx: &mut GuestVmx, outcome: Outcome) -> Outcome {
    if outcome.has(Outcome::LEAVE_BIT) {
        return outcome;
    }
    if let Some(entry) = interrupt_l1(cpu, vmx) {
        if entry.has(Outcome::LEAVE_BIT) {
            return entry;
        }
        return if cpu.launched == Launch::LAUNCHED { outcome } else { outcome.choosing_entry() };
    }
    vmx.enter_vmcs02(cpu);
    refresh_offset(cpu, vmx);
    if vmx.vmcs02().is_launched() { outcome } else { outcome.choosing_entry() }
}

/// Events that exit from L2 to L1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Nmi,
    /// An interrupt of its APIC, or of the 8259s.
    Interrupt,
    External,
}

/// Returns the event that is pending for L1, which is in L2, with VMCS01 current.
pub fn event_for_l1(cpu: &mut Cpu) -> Option<Event> {
    delivery::pull(cpu);
    // Interrupts are off in VMCS01, so that it is an NMI if anything.
    if vmcs::read(Field::ENTRY_INTERRUPTION) & VALID != 0 {
        return Some(Event::Nmi);
    }
    let vcpu = cpu.vcpu();
    if vcpu.arch.events.any() && cpu.apic().passes_external() && vcpu.arch.index == 0 && vcpu.vm().arch.devices.pic.interrupts() {
        return Some(Event::External);
    }
    let is_pending = if cpu.apic_level >= ApicVirtualization::Delivery {
        let requested = vmcs::read(Field::GUEST_INTERRUPT_STATUS) as u8;
        cpu.apic().will_deliver(requested)
    } else {
        cpu.apic().pending().is_some()
    };
    is_pending.then_some(Event::Interrupt)
}

/// Gives L1 what waits for it, by an exit of L2 if L1 asked for that; VMCS01 is current. Returns the outcome of that exit, after which L1 is
/// entered or its VM ends. Otherwise either of the VMCSs is current.
pub fn interrupt_l1(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Option<Outcome> {
    const EXTERNAL_INTERRUPT: u64 = basic::EXTERNAL_INTERRUPT as u64;
    let event = event_for_l1(cpu)?;
    let pin = vmx.vmcs12.get32(Field::PIN_CONTROLS);
    let (exits, reason) = match event {
        Event::Nmi => (pin & pin::NMIS != 0, basic::EXCEPTION),
        Event::Interrupt | Event::External => (pin & pin::EXTERNAL_INTERRUPTS != 0, EXTERNAL_INTERRUPT),
    };
    if !exits {
        interrupt_l2(cpu, vmx, event);
        return None;
    }
    let acknowledges = vmx.vmcs12.get32(Field::EXIT_CONTROLS) & exit::ACKNOWLEDGE_INTERRUPT != 0;
    let told = if event == Event::Nmi || acknowledges { acknowledge(cpu, event) } else { 0 };
    vmx.enter_vmcs02(cpu);
    let exit = Exit::before_entry(reason, told);
    Some(forward::forward(cpu, vmx, &exit))
}

/// Takes an event that waits for L1, with VMCS01 current. Returns it as fields tell of events; zero if it is gone.
fn acknowledge(cpu: &mut Cpu, event: Event) -> u64 {
    match event {
        Event::Nmi => {
            vmcs::write(Field::ENTRY_INTERRUPTION, 0);
            VALID | NMI | 2
        }
        Event::External => VALID | u64::from(cpu.vcpu().vm().arch.devices.pic.acknowledge()),
        Event::Interrupt => {
            let vector = if cpu.apic().is_pending() { cpu.apic().acknowledge() } else { None };
            delivery::pull(cpu);
            vector.map_or(0, |vector| VALID | u64::from(vector))
        }
    }
}

/// L1 does not ask for exits by its interrupts: L2 takes them.
#[cold]
fn interrupt_l2(cpu: &mut Cpu, vmx: &mut GuestVmx, event: Event) {
    const NMI_BLOCKED: u64 = 0b1011;
    vmx.enter_vmcs02(cpu);
    let free = vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0;
    let takes = match event {
        Event::Nmi => vmcs::read(Field::GUEST_INTERRUPTIBILITY) & NMI_BLOCKED == 0,
        Event::Interrupt | Event::External => window::can_interrupt(),
    };
    if free && takes {
        to_vmcs01(cpu);
        let told = acknowledge(cpu, event);
        vmx.enter_vmcs02(cpu);
        vmcs::write(Field::ENTRY_INTERRUPTION, told);
    } else if event != Event::Nmi {
        vmx.set_own_window(true);
    }
}

impl GuestVmx {
    /// Chooses whether L2 exits, for Stile, as soon as it can be interrupted. VMCS02 is current.
    fn set_own_window(&mut self, on: bool) {
        self.own_window = on;
        let window = u64::from(primary::INTERRUPT_WINDOW);
        let l1s = u64::from(self.primary12()) & window;
        let controls = vmcs::read(Field::PRIMARY_CONTROLS) & !window | l1s | if on { window } else { 0 };
        self.vmcs02().compose(Field::PRIMARY_CONTROLS, controls);
    }
}

/// The vCPU may have been loaded anew, with another offset of its counter. VMCS02 is current.
pub fn refresh_offset(cpu: &Cpu, vmx: &mut GuestVmx) {
    let offset12 = if vmx.primary12() & primary::TSC_OFFSET != 0 { vmx.vmcs12.get(Field::TSC_OFFSET) } else { 0 };
    let offset = cpu.vcpu().arch.kept.tsc_offset().wrapping_add(offset12);
    vmx.vmcs02().compose(Field::TSC_OFFSET, offset);
}

/// An exception that exits because its delivery might never end, or an NMI.
fn exception(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    const DEBUG: u64 = 1;
    let event = vmcs::read(Field::EXIT_INTERRUPTION);
    if event & TYPE == NMI {
        return Outcome::again(row);
    }
    inject::block_nmis_if_iret(event);
    if event as u8 == DEBUG as u8 {
        handler::debug(vmcs::read(Field::EXIT_QUALIFICATION));
    }
    inject::event(event, vmcs::read(Field::EXIT_INTERRUPTION_CODE));
    to_vmcs01(cpu);
    let outcome = handler::resume_or_leave(cpu, row);
    go_on(cpu, vmx, outcome)
}

/// An access to a control register that L1 does not ask for.
fn control_register(cpu: &mut Cpu, vmx: &GuestVmx) {
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let number = qualification as usize >> 8 & 0xf;
    let value = if number == gpr::RSP { vmcs::read(Field::GUEST_RSP) } else { cpu.frame.registers[number] };
    let value = if cr0::runs_64_bit_code() { value } else { value & 0xffff_ffff };
    match (qualification & 0xf, qualification >> 4 & 0b11) {
        (0, 0) if cr0::write(cpu.vcpu().vm(), value, vmx.vmcs12.get(Field::CR0_MASK)) => _ = skip_instruction(),
        // Task priority is L1's.
        (8, 0) if value >> 4 == 0 => {
            cpu.apic().set_task_priority((value as u8) << 4);
            skip_instruction();
        }
        (8, 1) => {
            let priority = u64::from(cpu.apic().task_priority() >> 4);
            if number == gpr::RSP {
                vmcs::write(Field::GUEST_RSP, priority);
            } else {
                cpu.frame.registers[number] = priority;
            }
            skip_instruction();
        }
        _ => inject::general_protection(),
    }
}

/// IN or OUT of a port that L1 leaves to L2: the device is L1's.
fn port(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let (port, size) = ((qualification >> 16) as u16, (qualification & 0b111) + 1);
    let (is_in, is_string) = (qualification & 1 << 3 != 0, qualification & 1 << 4 != 0);
    if is_string {
        return match string_io::move_element(cpu, vmx, row, qualification) {
            Ok(()) => go_on(cpu, vmx, Outcome::again(row)),
            Err(outcome) => outcome,
        };
    }
    skip_instruction();
    to_vmcs01(cpu);
    let mask = u64::MAX >> (64 - 8 * size.min(4));
    if is_in {
        let value = ports::read(cpu, port, size) & mask;
        let rax = &mut cpu.frame.registers[gpr::RAX];
        *rax = if size < 4 { *rax & !mask | value } else { value };
    } else {
        let value = cpu.frame.registers[gpr::RAX] & mask;
        if let Some(end) = ports::write(cpu, port, size, value) {
            return cpu.end_vm(row, end);
        }
    }
    go_on(cpu, vmx, Outcome::again(row))
}

/// RDMSR or WRMSR of a register that L1 leaves to L2: it is L1's.
fn msr(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId, write: bool) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let value = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    // L1 may have changed its bitmap since the entry.
    if vmx.merge_msr_bitmap(cpu) {
        return Outcome::again(row);
    }
    to_vmcs01(cpu);
    let done = if write { of_l1::write(cpu, register, value).then_some(None) } else { of_l1::read(cpu, register).map(Some) };
    vmx.enter_vmcs02(cpu);
    match done {
        Some(value) => {
            if let Some(value) = value {
                cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
                cpu.frame.registers[gpr::RDX] = value >> 32;
            }
            skip_instruction();
        }
        None => inject::general_protection(),
    }
    to_vmcs01(cpu);
    go_on(cpu, vmx, Outcome::again(row))
}

/// An EPT violation of an L2 for which L1 has no tables: its addresses are L1's.
fn violation(cpu: &mut Cpu, row: RowId) -> Outcome {
    let address = vmcs::read(Field::GUEST_PHYSICAL);
    let vm = cpu.vcpu().vm();
    if vm.arch.physical(address).is_none() {
        return unsupported(cpu, EPT_VIOLATION, address);
    }
    inject::block_nmis_if_iret(vmcs::read(Field::EXIT_QUALIFICATION));
    vm.touch(address);
    inject::deliver_again();
    Outcome::again(row)
}
