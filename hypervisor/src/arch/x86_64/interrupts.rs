//! Guests' interrupts: from the lines of devices and the messages of APICs to the vCPU that takes them (models: crate `stile-apic`).

use stile_apic::{Delivery, Effect, LocalApic, Message, Received};

use super::cpu::Cpu;
use super::vm::Watch;
use super::vmcs::{self, Field};
use super::{signals, timer, vmx};
use crate::cpu;
use crate::vm::{Vcpu, Vm};

/// In [`Field::ENTRY_INTERRUPTION`]: there is an event; an external interrupt has type 0 (the manual, "VM-Entry Controls for Event
/// Injection").
pub const VALID: u64 = 1 << 31;
/// RFLAGS.IF.
const IF: u64 = 1 << 9;
/// Blocking by STI and by MOV SS ("Guest Non-Register State").
const SHADOWS: u64 = 0b11;

/// Sends a message to those vCPUs that it is for. `cpu` is there if an exit of a vCPU is being handled that goes on: it looks by itself.
pub fn send(vm: &'static Vm, message: Message, sender: u32, mut cpu: Option<&mut Cpu>) {
    let is_target = |vcpu: &&&'static Vcpu| vcpu.arch.apic.lock().is_target(message.destination, sender);
    if message.delivery == Delivery::LowestPriority {
        let priority = |vcpu: &&&'static Vcpu| vcpu.arch.apic.lock().processor_priority();
        if let Some(vcpu) = vm.vcpus.iter().filter(is_target).min_by_key(priority) {
            receive(vcpu, message, cpu);
        }
        return;
    }
    for vcpu in vm.vcpus.iter().filter(is_target) {
        receive(vcpu, message, cpu.as_deref_mut());
    }
}

fn receive(vcpu: &'static Vcpu, message: Message, cpu: Option<&mut Cpu>) {
    let received = vcpu.arch.apic.lock().receive(message);
    match received {
        Received::Interrupt => match cpu {
            None => cpu::notify(vcpu),
            Some(_) if cpu::runs_here(vcpu) => {}
            Some(cpu) if !cpu::kick_if_running(vcpu) => cpu::wake_beside(cpu, vcpu),
            Some(_) => {}
        },
        Received::Startup(page) => signals::start_up(vcpu, page),
        Received::Init => signals::init(vcpu),
        Received::Nmi => signals::nmi(vcpu),
        Received::External => signals::external(vcpu.vm()),
        // There is no system management.
        Received::Nothing | Received::Smi => {}
    }
}

/// What the I/O APIC has to send after a change.
pub fn send_from_io_apic(vm: &'static Vm, mut cpu: Option<&mut Cpu>) {
    loop {
        let message = vm.arch.io_apic.lock().next_message();
        let Some(message) = message else { return };
        // No sender has this identifier.
        send(vm, message, u32::MAX, cpu.as_deref_mut());
    }
}

/// Gives the loaded vCPU the interrupt that waits for it; if it can't take it now, sees to it that it exits when it can.
pub fn pull(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if vcpu.arch.signals.any() {
        signals::pull(vcpu);
    }
    let mut apic = cpu.vcpu().arch.apic.lock();
    if apic.pending().is_none() {
        return;
    }
    if vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0
        && can_interrupt()
        && let Some(vector) = apic.acknowledge()
    {
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
        if apic.pending().is_none() {
            return;
        }
    }
    exit_when_it_can(true);
}

/// Something waits for a vCPU that it is to look at, also one of this CPU.
pub fn look(vcpu: &'static Vcpu) {
    cpu::notify(vcpu);
}

/// The 8259s of a VM have, or may have, an interrupt.
pub fn external(vm: &'static Vm) {
    signals::external(vm);
}

/// Whether the loaded vCPU would take an interrupt now.
pub fn can_interrupt() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0 && vmcs::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS == 0
}

/// Chooses whether the loaded vCPU exits as soon as it can take an interrupt.
pub fn exit_when_it_can(on: bool) {
    Cpu::note_window(on);
    let controls = vmcs::read(Field::PRIMARY_CONTROLS);
    let window = u64::from(vmx::primary::INTERRUPT_WINDOW);
    let new = if on { controls | window } else { controls & !window };
    if new != controls {
        vmcs::write(Field::PRIMARY_CONTROLS, new);
    }
}

/// Whether something is pending that would end the loaded vCPU's HLT.
pub fn is_pending(vcpu: &Vcpu) -> bool {
    let on = vmcs::read(Field::GUEST_RFLAGS) & IF != 0;
    on && vcpu.arch.apic.lock().pending().is_some() || vcpu.arch.signals.any() && signals::end_wait(vcpu, on)
}

/// The timer of the loaded vCPU may ring. Returns whether it did.
pub fn expire_timer(vcpu: &'static Vcpu) -> bool {
    let now = timer::now();
    if vcpu.arch.watch() <= now {
        vcpu.vm().arch.ports.expire(vcpu.vm());
    }
    let received = vcpu.arch.apic.lock().expire_timer(now);
    set_deadline(vcpu);
    match received {
        Received::Nmi => signals::nmi(vcpu),
        Received::External => signals::external(vcpu.vm()),
        _ => {}
    }
    received == Received::Interrupt
}

/// When something is to be done for a vCPU: its APIC's timer, or another device that it keeps time for.
fn deadline(vcpu: &Vcpu, apic: &LocalApic) -> Option<u64> {
    let first = apic.timer_deadline().unwrap_or(Watch::NEVER).min(vcpu.arch.watch());
    (first != Watch::NEVER).then_some(first)
}

/// Sets this CPU's timer for the loaded vCPU.
pub fn set_deadline(vcpu: &Vcpu) {
    let deadline = deadline(vcpu, &vcpu.arch.apic.lock());
    timer::set_guest_deadline(deadline);
}

/// Brings a vCPU's interrupts onto this CPU.
pub fn load(cpu: &mut Cpu, vcpu: &'static Vcpu) {
    cpu.apic_base = vcpu.arch.apic.lock().base();
    Cpu::note_window(false);
    expire_timer(vcpu);
    pull(cpu);
}

/// The reverse. Returns when the vCPU must be woken if it sleeps: now, if something is pending.
pub fn put(vcpu: &Vcpu) -> Option<u64> {
    timer::set_guest_deadline(None);
    let apic = vcpu.arch.apic.lock();
    if apic.pending().is_some() || vcpu.arch.signals.any() { Some(0) } else { deadline(vcpu, &apic) }
}

/// Does what a vCPU's write to its local APIC causes elsewhere. Its own interrupts are left to [`pull`].
pub fn follow(cpu: &mut Cpu, effect: Effect) {
    let vcpu = cpu.vcpu();
    match effect {
        Effect::None => {}
        Effect::Send(message) => send(vcpu.vm(), message, vcpu.arch.index as u32, Some(cpu)),
        Effect::End(vector) => {
            vcpu.vm().arch.io_apic.lock().end(vector);
            send_from_io_apic(vcpu.vm(), Some(cpu));
        }
        Effect::Timer => set_deadline(vcpu),
    }
}
