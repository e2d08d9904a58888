//! Exits of L2 that Stile handles, and events that interrupt L2.

use stile_ledger::RowId;
use stile_nested_vmx::intercepts::is_absent_instruction;
use stile_nested_vmx::virtual_apic::is_below_threshold;
use stile_nested_vmx::{Field, Groups, nmi_window};
use stile_x86_decode::Fault;
use stile_x86_walk::GuestMemory;

use super::device;
use super::end::unsupported;
use super::forward::{self, Exit};
use super::l1_msrs;
use super::l2_memory::{L2Memory, Refusal};
use super::merge::LBR;
use super::raise::raise;
use super::rows::own_row;
use super::state::{GuestVmx, to_vmcs01};
use super::string_io;
use crate::arch::x86_64::emulation::ports;
use crate::arch::x86_64::handler;
use crate::arch::x86_64::host::cpu::{Cpu, Launch, gpr};
use crate::arch::x86_64::host::{apic, instructions};
use crate::arch::x86_64::interrupts::events::{self, BLOCKS_NMI};
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::inject::{NMI, TYPE, VALID};
use crate::arch::x86_64::vcpu::{cr0, inject};
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::{self, exit, pin, primary, secondary};
use crate::arch::x86_64::vmx::handler::side_effects;
use crate::arch::x86_64::vmx::vmcs;
use crate::cpu::Outcome;
use stile_blob::ApicVirtualization;

const HLT: u64 = basic::HLT as u64;
const IO: u64 = basic::IO as u64;
const RDMSR: u64 = basic::RDMSR as u64;
const WRMSR: u64 = basic::WRMSR as u64;
const EPT_VIOLATION: u64 = basic::EPT_VIOLATION as u64;
/// The activity state HLT.
const HALTED: u64 = 1;

impl GuestVmx {
    /// Whether L1 uses EPT for L2.
    pub fn has_ept(&self) -> bool {
        self.secondary12() & secondary::EPT != 0
    }

    /// Bits of CR0 that L2 must leave set ("Restrictions on VMX Operation"). Those that L1 holds keep their value.
    fn fixed_cr0(&self) -> u64 {
        let is_unrestricted = self.secondary12() & secondary::UNRESTRICTED_GUEST != 0;
        let fixed = cr0::NE | if is_unrestricted { 0 } else { cr0::PE | cr0::PG };
        fixed & !self.vmcs12.get(Field::CR0_MASK)
    }
}

/// Handles an exit of L2 that is not L1's, with VMCS02 current.
pub fn handle(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64) -> Outcome {
    let row = own_row(cpu, reason);
    match reason {
        basic::EXCEPTION => return exception(cpu, vmx, row),
        basic::INTERRUPT_WINDOW => {
            vmx.set_own_window(primary::INTERRUPT_WINDOW, false);
            to_vmcs01(cpu);
            return resume(cpu, vmx, Outcome::again(row));
        }
        basic::NMI_WINDOW => {
            vmx.set_own_window(primary::NMI_WINDOW, false);
            to_vmcs01(cpu);
            return resume(cpu, vmx, Outcome::again(row));
        }
        basic::MONITOR_TRAP => {
            vmx.set_own_window(primary::MONITOR_TRAP, false);
            to_vmcs01(cpu);
            return resume(cpu, vmx, Outcome::again(row));
        }
        // The processor waits in HLT, and every physical interrupt exits.
        HLT => {
            vmx.skip_instruction();
            vmcs::write(Field::GUEST_ACTIVITY, HALTED);
        }
        basic::WBINVD => vmx.skip_instruction(),
        basic::MWAIT | basic::MONITOR => return raise(cpu, vmx, row, Fault::InvalidOpcode),
        basic::CONTROL_REGISTER => return control_register(cpu, vmx, row),
        IO => return port(cpu, vmx, row),
        RDMSR | WRMSR => return msr(cpu, vmx, row, reason == WRMSR),
        EPT_VIOLATION => return violation(cpu, vmx, row),
        basic::APIC_ACCESS => return device(cpu, vmx, device::apic_access),
        basic::RDPMC => return raise(cpu, vmx, row, Fault::Protection),
        // Spurious, as for L1.
        basic::INIT => {}
        _ if is_absent_instruction(reason) => return raise(cpu, vmx, row, Fault::InvalidOpcode),
        _ => return unsupported(cpu, reason, 0),
    }
    Outcome::again(row)
}

/// Handles a physical interrupt, with VMCS02 current.
pub fn interrupt(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Outcome {
    let vector = vmcs::read(Field::EXIT_INTERRUPTION) as u8;
    vmx.may_inject = inject::deliver_again();
    to_vmcs01(cpu);
    let outcome = handler::handle_interrupt(cpu, vector);
    resume(cpu, vmx, outcome)
}

/// Resumes after an exit whose handler ran with VMCS01, which is current.
fn resume(cpu: &mut Cpu, vmx: &mut GuestVmx, outcome: Outcome) -> Outcome {
    if outcome.has(Outcome::LEAVE_BIT) {
        return outcome;
    }
    // The trap precedes interrupts.
    if vmx.traps {
        vmx.enter_vmcs02(cpu);
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

/// Events that an entry to L2 must consider. Most cause an exit to L1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Init,
    Nmi,
    /// Interrupt of its APIC, or of the 8259s.
    Interrupt,
    External,
    /// One of L2's that an exception has replaced.
    Replaced,
}

/// Pending event of L1, which is in L2, with VMCS01 current. `holds_nmis`: L2 blocks a pending NMI.
pub fn event_for_l1(cpu: &mut Cpu, holds_nmis: impl FnOnce(&mut Cpu) -> bool) -> Option<Event> {
    delivery::pull(cpu);
    if cpu.vcpu().arch.events.has_blocked_init() {
        return Some(Event::Init);
    }
    // Interrupts are disabled in VMCS01: an event is an NMI.
    if vmcs::read(Field::ENTRY_INTERRUPTION) & VALID != 0 && !holds_nmis(cpu) {
        return Some(Event::Nmi);
    }
    let vcpu = cpu.vcpu();
    if vcpu.arch.events.any() && vcpu.arch.index == 0 && events::has_external(cpu) {
        return Some(Event::External);
    }
    let is_pending = if cpu.apic_level >= ApicVirtualization::Delivery {
        // PPR in the page is that of L1's last exit.
        let interrupts = vmcs::read(Field::GUEST_INTERRUPT_STATUS) as u16;
        cpu.apic().can_deliver(interrupts)
    } else {
        cpu.apic().pending().is_some()
    };
    if is_pending {
        return Some(Event::Interrupt);
    }
    cpu.vcpu().arch.events.has_replaced().then_some(Event::Replaced)
}

/// Delivers L1's pending events, by an exit of L2 if L1 requested that; VMCS01 is current. Returns the outcome of
/// that exit, after which L1 is entered or its VM ends. Otherwise either VMCS is current.
pub fn interrupt_l1(cpu: &mut Cpu, vmx: &mut GuestVmx) -> Option<Outcome> {
    /// Notifications taken in a row: L1's other vCPUs may send them faster.
    const NOTIFICATIONS: u32 = 4;
    let mut event = event_for_l1(cpu, |cpu| vmx.holds_nmis(cpu))?;
    for _ in 0..NOTIFICATIONS {
        match deliver(cpu, vmx, event) {
            Taken::Outcome(outcome) => return outcome,
            Taken::Notification => to_vmcs01(cpu),
        }
        event = event_for_l1(cpu, |cpu| vmx.holds_nmis(cpu))?;
    }
    apic::kick(cpu.index);
    None
}

/// Result of delivering L1's pending event.
enum Taken {
    /// As the result of [`interrupt_l1`].
    Outcome(Option<Outcome>),
    /// It was a notification of interrupts posted for L2, which are pending now.
    Notification,
}

/// Delivers a pending event of L1. VMCS01 is current.
fn deliver(cpu: &mut Cpu, vmx: &mut GuestVmx, event: Event) -> Taken {
    const EXTERNAL_INTERRUPT: u64 = basic::EXTERNAL_INTERRUPT as u64;
    // Exits that the next entry causes precede interrupts.
    if event != Event::Init {
        if vmx.timer_has_expired(cpu) {
            return Taken::Outcome(None);
        }
        if is_below_threshold(&vmx.vmcs12, |address| Ram(cpu.vcpu().vm()).read_u64(address)) {
            // Another vCPU of L1 may raise VTPR before the processor compares it.
            apic::kick(cpu.index);
            return Taken::Outcome(None);
        }
    }
    let pin = vmx.vmcs12.get32(Field::PIN_CONTROLS);
    let (exits, reason) = match event {
        Event::Replaced => {
            vmx.deliver_replaced(cpu);
            return Taken::Outcome(None);
        }
        Event::Init => (true, basic::INIT),
        Event::Nmi => (pin & pin::NMIS != 0, basic::EXCEPTION),
        Event::Interrupt | Event::External => (pin & pin::EXTERNAL_INTERRUPTS != 0, EXTERNAL_INTERRUPT),
    };
    if !exits {
        interrupt_l2(cpu, vmx, event);
        return Taken::Outcome(None);
    }
    if vmx.may_inject {
        vmx.enter_vmcs02(cpu);
        if vmcs::read(Field::ENTRY_INTERRUPTION) & VALID != 0 {
            // An entry injects first (SDM, "VM-Entry Event Injection"). Stile's own interrupt exits before L2's next instruction.
            apic::kick(cpu.index);
            return Taken::Outcome(None);
        }
        to_vmcs01(cpu);
    }
    let acknowledges = vmx.vmcs12.get32(Field::EXIT_CONTROLS) & exit::ACKNOWLEDGE_INTERRUPT != 0;
    let takes = matches!(event, Event::Init | Event::Nmi) || acknowledges;
    let information = if takes { acknowledge(cpu, event) } else { 0 };
    if takes && information == 0 && event == Event::Interrupt {
        return Taken::Outcome(None);
    }
    if event == Event::Interrupt && vmx.is_notification(information) {
        vmx.take_posted(cpu);
        return Taken::Notification;
    }
    // Even if L2 is interrupted before its first instruction, its launch has succeeded.
    vmx.entering = None;
    vmx.enter_vmcs02(cpu);
    let exit = Exit { reason, event: information, ..Exit::default() };
    Taken::Outcome(Some(forward::forward(cpu, vmx, &exit)))
}

/// Takes a pending event of L1, with VMCS01 current. Returns it in the format of interruption-information fields;
/// zero if it is gone.
fn acknowledge(cpu: &mut Cpu, event: Event) -> u64 {
    match event {
        Event::Init => {
            cpu.vcpu().arch.events.drop_init();
            0
        }
        Event::Nmi => {
            vmcs::write(Field::ENTRY_INTERRUPTION, 0);
            VALID | NMI | 2
        }
        Event::Replaced => 0,
        Event::External => VALID | u64::from(events::acknowledge_external(cpu)),
        Event::Interrupt => {
            let vector = if cpu.apic().is_pending() { cpu.apic().acknowledge() } else { None };
            delivery::pull(cpu);
            vector.map_or(0, |vector| VALID | u64::from(vector))
        }
    }
}

/// L1 does not request exits for its interrupts: L2 takes them.
#[cold]
fn interrupt_l2(cpu: &mut Cpu, vmx: &mut GuestVmx, event: Event) {
    vmx.may_inject = true;
    vmx.enter_vmcs02(cpu);
    let free = vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0;
    let takes = match event {
        // INIT always exits.
        Event::Init | Event::Replaced => false,
        Event::Nmi => vmcs::read(Field::GUEST_INTERRUPTIBILITY) & BLOCKS_NMI == 0,
        Event::Interrupt | Event::External => window::can_interrupt(),
    };
    if free && takes {
        to_vmcs01(cpu);
        let information = acknowledge(cpu, event);
        if event == Event::External {
            vmx.external = Some(information as u8);
        }
        vmx.enter_vmcs02(cpu);
        vmcs::write(Field::ENTRY_INTERRUPTION, information);
        if event == Event::Nmi && cpu.vcpu().arch.events.wakes() {
            // Another one is pending, whose window in VMCS01 does not open in L2.
            vmx.set_own_window(primary::NMI_WINDOW, true);
        }
    } else if event == Event::Nmi {
        // L1 has no NMI windows, which need NMI exiting.
        vmx.set_own_window(nmi_window(vmcs::read(Field::GUEST_INTERRUPTIBILITY), !free, extension::features().steps), true);
    } else if !matches!(event, Event::Init | Event::Replaced) {
        vmx.set_own_window(primary::INTERRUPT_WINDOW, true);
    }
}

impl GuestVmx {
    /// Sets interrupt-window or NMI-window exiting, or the monitor trap flag, of L2 for Stile. VMCS02 is current.
    pub fn set_own_window(&mut self, window: u32, on: bool) {
        let window = u64::from(window);
        let l1s = u64::from(self.primary12()) & window;
        let controls = vmcs::read(Field::PRIMARY_CONTROLS) & !window | l1s | if on { window } else { 0 };
        self.vmcs02().compose(Field::PRIMARY_CONTROLS, controls);
    }
}

/// Updates the TSC offset, which may have changed at load. VMCS02 is current.
pub fn refresh_offset(cpu: &Cpu, vmx: &mut GuestVmx) {
    let offset12 = if vmx.primary12() & primary::TSC_OFFSET != 0 { vmx.vmcs12.get(Field::TSC_OFFSET) } else { 0 };
    let offset = cpu.vcpu().arch.msrs.tsc_offset().wrapping_add(offset12);
    vmx.vmcs02().compose(Field::TSC_OFFSET, offset);
}

/// Handles an intercepted exception whose delivery might recur endlessly, or an NMI.
fn exception(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    let event = vmcs::read(Field::EXIT_INTERRUPTION);
    if event & TYPE == NMI {
        return Outcome::again(row);
    }
    inject::block_nmis_if_iret(event);
    let interrupted = inject::was_delivering().then(|| vmcs::read(Field::VECTORING));
    side_effects(event);
    inject::event(event, vmcs::read(Field::EXIT_INTERRUPTION_CODE));
    if let Some(event) = interrupted {
        vmx.put_back(cpu, event);
    }
    resume_or_leave(cpu, vmx, row)
}

/// Resumes L2 with an injected event, after a check for interrupts: its delivery may exit before the processor takes
/// them. VMCS02 is current.
pub fn resume_or_leave(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    to_vmcs01(cpu);
    let outcome = handler::resume_or_leave(cpu, row);
    resume(cpu, vmx, outcome)
}

/// Handles an access to a control register that L1 does not intercept.
fn control_register(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let number = qualification as usize >> 8 & 0xf;
    let value = if number == gpr::RSP { vmcs::read(Field::GUEST_RSP) } else { cpu.frame.registers[number] };
    let value = if cr0::runs_64_bit_code() { value } else { value & 0xffff_ffff };
    match (qualification & 0xf, qualification >> 4 & 0b11) {
        (0, 0) if vmx.fixed_cr0() & !value == 0 => {
            // CR3 is an L2 physical address.
            let memory = L2Memory::new(cpu, vmx);
            let is_done = cr0::write_with(value, vmx.vmcs12.get(Field::CR0_MASK), |table| memory.pdptes(table));
            if let Err(Refusal::Exit { exit, linear, physical }) = memory.check_pdptes() {
                return forward::forward_access(cpu, vmx, &exit, linear, physical);
            }
            if !is_done {
                return raise(cpu, vmx, row, Fault::Protection);
            }
            vmx.skip_instruction();
        }
        // The TPR is L1's: a lower one may unblock an interrupt, and VMCS01's TPR threshold must not exceed it.
        (8, 0) if value >> 4 == 0 => {
            vmx.skip_instruction();
            cpu.apic().set_task_priority((value as u8) << 4);
            to_vmcs01(cpu);
            return resume(cpu, vmx, Outcome::again(row));
        }
        (8, 1) => {
            let priority = u64::from(cpu.apic().task_priority() >> 4);
            if number == gpr::RSP {
                vmcs::write(Field::GUEST_RSP, priority);
            } else {
                cpu.frame.registers[number] = priority;
            }
            vmx.skip_instruction();
        }
        _ => return raise(cpu, vmx, row, Fault::Protection),
    }
    Outcome::again(row)
}

/// Handles IN or OUT at a port that L1 passes to L2: the device is L1's.
fn port(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let (port, size) = ((qualification >> 16) as u16, (qualification & 0b111) + 1);
    let (is_in, is_string) = (qualification & 1 << 3 != 0, qualification & 1 << 4 != 0);
    if is_string {
        return match string_io::move_element(cpu, vmx, row, qualification) {
            Ok(()) => resume(cpu, vmx, Outcome::again(row)),
            Err(outcome) => outcome,
        };
    }
    vmx.skip_instruction();
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
    resume(cpu, vmx, Outcome::again(row))
}

/// Handles L2's WRMSR of IA32_DEBUGCTL: entries and exits load it, so it is L2's own. Returns whether it is valid. VMCS02 is current.
fn write_debugctl(value: u64) -> bool {
    const BTF: u64 = 1 << 1;
    let is_valid = value & !(LBR | BTF) == 0;
    if is_valid {
        vmcs::write(Field::GUEST_DEBUGCTL, value & !LBR);
    }
    is_valid
}

/// Handles RDMSR or WRMSR of an MSR that L1 passes to L2: it is L1's.
fn msr(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId, write: bool) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let value = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    // L1 may have changed its bitmap since the entry.
    if vmx.merge_msr_bitmap() {
        return Outcome::again(row);
    }
    if write && register == instructions::msr::DEBUGCTL {
        if !write_debugctl(value) {
            return raise(cpu, vmx, row, Fault::Protection);
        }
        vmx.skip_instruction();
        to_vmcs01(cpu);
        return resume(cpu, vmx, Outcome::again(row));
    }
    to_vmcs01(cpu);
    let done = if write { l1_msrs::write(cpu, register, value).then_some(None) } else { l1_msrs::read(cpu, register).map(Some) };
    vmx.enter_vmcs02(cpu);
    // IA32_APIC_BASE may have changed.
    vmx.write_controls(cpu, Groups::NONE);
    match done {
        Some(value) => {
            if let Some(value) = value {
                cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
                cpu.frame.registers[gpr::RDX] = value >> 32;
            }
            vmx.skip_instruction();
        }
        None => return raise(cpu, vmx, row, Fault::Protection),
    }
    to_vmcs01(cpu);
    resume(cpu, vmx, Outcome::again(row))
}

/// Resumes after an access to a device of L1, which may have interrupted L1.
pub fn device(cpu: &mut Cpu, vmx: &mut GuestVmx, access: impl FnOnce(&mut Cpu, &mut GuestVmx) -> Result<RowId, Outcome>) -> Outcome {
    match access(cpu, vmx) {
        Ok(row) => resume(cpu, vmx, Outcome::again(row)),
        Err(outcome) => outcome,
    }
}

/// Handles an EPT violation of an L2 without L1's EPT: its addresses are L1's.
fn violation(cpu: &mut Cpu, vmx: &mut GuestVmx, row: RowId) -> Outcome {
    let address = vmcs::read(Field::GUEST_PHYSICAL);
    let vm = cpu.vcpu().vm();
    if vm.arch.physical(address).is_none() {
        return device(cpu, vmx, |cpu, vmx| device::violation(cpu, vmx, address));
    }
    inject::block_nmis_if_iret(vmcs::read(Field::EXIT_QUALIFICATION));
    vm.touch(address);
    if inject::deliver_again() {
        return resume_or_leave(cpu, vmx, row);
    }
    Outcome::again(row)
}
