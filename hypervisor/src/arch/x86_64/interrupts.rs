//! Guests' interrupts: from the lines of devices and the messages of APICs to the vCPU that takes them (models: crate `stile-apic`).

use stile_apic::{Delivery, Effect, Message, Received};

use super::cpu::Cpu;
use super::vmcs::{self, Field};
use super::{timer, vmx};
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
        // One that runs is not reset: guests start vCPUs that are off, which have nothing to reset.
        Received::Startup(page) => vcpu.arch.start_up(vcpu, page),
        Received::Nothing | Received::External | Received::Nmi | Received::Smi | Received::Init => {}
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

/// Whether the loaded vCPU would take an interrupt now.
fn can_interrupt() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0 && vmcs::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS == 0
}

/// Chooses whether the loaded vCPU exits as soon as it can take an interrupt.
pub fn exit_when_it_can(on: bool) {
    let controls = vmcs::read(Field::PRIMARY_CONTROLS);
    let window = u64::from(vmx::primary::INTERRUPT_WINDOW);
    let new = if on { controls | window } else { controls & !window };
    if new != controls {
        vmcs::write(Field::PRIMARY_CONTROLS, new);
    }
}

/// Whether something is pending that would end the loaded vCPU's HLT.
pub fn is_pending(vcpu: &Vcpu) -> bool {
    vcpu.arch.apic.lock().pending().is_some() && vmcs::read(Field::GUEST_RFLAGS) & IF != 0
}

/// The timer of the loaded vCPU may ring. Returns whether it did.
pub fn expire_timer(vcpu: &Vcpu) -> bool {
    let mut apic = vcpu.arch.apic.lock();
    let rang = apic.expire_timer(timer::now()) == Received::Interrupt;
    timer::set_guest_deadline(apic.timer_deadline());
    rang
}

/// Brings a vCPU's interrupts onto this CPU.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu) {
    cpu.apic_base = vcpu.arch.apic.lock().base();
    expire_timer(vcpu);
    pull(cpu);
}

/// The reverse. Returns when the vCPU must be woken if it sleeps: now, if something is pending.
pub fn put(vcpu: &Vcpu) -> Option<u64> {
    timer::set_guest_deadline(None);
    let apic = vcpu.arch.apic.lock();
    apic.pending().map(|_| 0).or(apic.timer_deadline())
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
        Effect::Timer => {
            let deadline = vcpu.arch.apic.lock().timer_deadline();
            timer::set_guest_deadline(deadline);
        }
    }
}
