//! Guests' interrupts: from the lines of devices and the messages of APICs to the vCPU that takes them (models: crate `stile-apic`).

use stile_apic::{Delivery, Effect, LocalApic, Message, Received};
use stile_blob::ApicVirtualization;

use super::window::{VALID, can_interrupt, exit_when_it_can, interrupts_on};
use super::{deadline, deadlock, events, virtual_apic};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::{apic, timer};
use crate::cpu::{self, Loaded};
use crate::vm::{Vcpu, Vm};

/// Sends a message to those vCPUs that it is for. `cpu` is there if an exit of a vCPU is being handled that goes on: it looks by itself.
pub fn send(vm: &'static Vm, message: Message, sender: u32, mut cpu: Option<&mut Cpu>) {
    let is_target = |vcpu: &&&'static Vcpu| vcpu.arch.pages.is_target(message.destination, sender);
    if message.delivery == Delivery::LowestPriority {
        let priority = |vcpu: &&&'static Vcpu| vcpu.arch.pages.processor_priority();
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
    receives(vcpu, vcpu.arch.pages.receive(message), cpu);
}

/// Sends a fixed interrupt of the loaded vCPU's APIC to the one with identifier `to`, which may be its own or none. `takes` as for
/// [`interrupt_self`].
pub fn send_to_one(cpu: &mut Cpu, to: u32, vector: u8, takes: u64) {
    let own = cpu.vcpu();
    if to == own.arch.index as u32 {
        return interrupt_self(cpu, vector, takes);
    }
    // APIC identifiers are vCPUs' indexes (`Vcpu::reset`). The mode of the target's APIC does not matter: there are fewer than 256.
    const _: () = assert!(stile_board::MAX_VCPUS < 0xff);
    if let Some(vcpu) = own.vm().vcpus.get(to as usize) {
        receives(vcpu, vcpu.arch.pages.interrupt(vector), Some(cpu));
    }
}

/// An edge on pin LINT0 of a vCPU's APIC.
pub fn pulse(vcpu: &'static Vcpu) {
    match vcpu.arch.pages.pulse(0) {
        // That is a level, and followed by `events`.
        Received::External => {}
        received => receives(vcpu, received, None),
    }
}

/// The 8259s of a VM may have an interrupt, or none any more: they sit on pin LINT0 of the first vCPU.
pub fn external(vm: &'static Vm) {
    let Some(first) = vm.vcpus.first() else { return };
    let (interrupts, rises) = vm.arch.devices.pic.interrupt_request();
    if rises {
        pulse(first);
    }
    if interrupts {
        events::external(first);
    }
}

/// Does what follows from what a vCPU's APIC has received.
#[inline(always)]
fn receives(vcpu: &'static Vcpu, received: Received, cpu: Option<&mut Cpu>) {
    match received {
        Received::Interrupt => notify(vcpu, cpu, vcpu.arch.apic_level == ApicVirtualization::Posted),
        Received::Level => notify(vcpu, cpu, false),
        Received::Startup(page) => events::start_up(vcpu, page),
        Received::Init => events::init(vcpu),
        Received::Nmi => events::nmi(vcpu),
        Received::External => external(vcpu.vm()),
        // There is no system management.
        Received::Nothing | Received::Smi => {}
    }
}

/// Makes a vCPU take what was posted for it: one that runs elsewhere by an exit there, or if the processor takes it by itself, by a
/// notification.
fn notify(vcpu: &'static Vcpu, cpu: Option<&mut Cpu>, by_itself: bool) {
    let notify_running = || match by_itself {
        true => cpu::running_on(vcpu).inspect(|&there| apic::notify(there)).is_some(),
        false => cpu::kick_if_running(vcpu),
    };
    match cpu {
        None if !by_itself => cpu::notify(vcpu),
        None if !notify_running() => cpu::wake(vcpu),
        // The exit that is being handled ends with a look.
        Some(_) if cpu::runs_here(vcpu) => {}
        Some(cpu) if !notify_running() => cpu::wake_beside(cpu, vcpu),
        None | Some(_) => {}
    }
}

/// Sends the messages that the I/O APIC has after a change.
pub fn send_from_io_apic(vm: &'static Vm, mut cpu: Option<&mut Cpu>) {
    loop {
        let message = vm.arch.io_apic.lock().next_message();
        let Some(message) = message else { return };
        // No sender has this identifier.
        send(vm, message, u32::MAX, cpu.as_deref_mut());
    }
}

/// Gives the loaded vCPU the interrupts that wait for it. Without the processor's help that is one of them; if the vCPU can't take it now,
/// it exits when it can.
#[inline]
pub fn pull(cpu: &mut Cpu) {
    if cpu.vcpu().arch.events.any() {
        events::pull(cpu);
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        if let Some(status) = cpu.apic().take_status() {
            virtual_apic::write_status(status);
        }
    } else {
        inject(cpu);
    }
}

/// An edge-triggered interrupt of the loaded vCPU's own: from itself, or its timer. At an exit in which nothing was injected before; `takes`
/// is not zero if its flags let it be interrupted.
#[inline]
pub fn interrupt_self(cpu: &mut Cpu, vector: u8, takes: u64) {
    let alone = !cpu.vcpu().arch.events.any();
    let delivers = cpu.apic_level >= ApicVirtualization::Delivery;
    if alone && delivers && cpu.apic().request_at_once(vector) {
        virtual_apic::request(vector);
    } else if alone && !delivers && takes != 0 && cpu.apic().take_at_once(vector) {
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
    } else {
        post_self(cpu, vector);
    }
}

/// Ends an interrupt of the loaded vCPU, if nothing follows from that. False, and nothing done, if something does.
#[inline(always)]
pub fn end_at_once(cpu: &mut Cpu) -> bool {
    cpu.apic_level < ApicVirtualization::Delivery && !cpu.vcpu().arch.events.any() && cpu.apic().end_at_once()
}

#[cold]
fn post_self(cpu: &mut Cpu, vector: u8) {
    cpu.apic().post(vector);
    pull(cpu);
}

#[inline(never)]
fn inject(cpu: &mut Cpu) {
    let Some(vector) = cpu.apic().pending() else { return note_priority(cpu) };
    let takes = vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0 && can_interrupt();
    let waits = if takes { take_interrupt(cpu, vector) } else { true };
    note_priority(cpu);
    if waits {
        exit_when_it_can(true);
    }
}

/// Injects the interrupt that the loaded vCPU's APIC has just named as pending. Returns whether another one waits.
#[inline(always)]
fn take_interrupt(cpu: &mut Cpu, vector: u8) -> bool {
    cpu.apic().take(vector);
    vmcs::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
    cpu.apic().pending().is_some()
}

/// The requests of the loaded vCPU's APIC have changed: where the processor keeps the task priority, it is told when to exit.
#[inline(always)]
fn note_priority(cpu: &mut Cpu) {
    if cpu.apic_level == ApicVirtualization::Registers {
        virtual_apic::write_threshold(cpu);
    }
}

/// An interrupt that the loaded vCPU was about to take waits again.
pub fn put_back(cpu: &mut Cpu, vector: u8) {
    // One of the 8259s' is lost to them: it comes as one of the APIC's.
    cpu.apic().put_back(vector);
}

/// Makes an NMI wait again that the loaded vCPU was about to take.
pub fn put_back_nmi(cpu: &mut Cpu) {
    events::nmi(cpu.vcpu());
}

/// Gives the loaded vCPU, which is to be entered, what waits for it. False if it waits by HLT, and was woken by what does not end that.
pub fn take(cpu: &mut Cpu) -> bool {
    // An event that is taken at entry ends it, too.
    if cpu.loaded().context().halted && vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0 && !is_pending(cpu) {
        return false;
    }
    cpu.loaded().context().halted = false;
    pull(cpu);
    true
}

/// Ends the loaded vCPU's HLT, which has just exited with interrupts enabled, if its APIC has an interrupt that it takes at the next entry.
/// False, and nothing done, if there is none, or the scheduler must look.
#[inline(always)]
pub fn end_hlt_at_once(cpu: &mut Cpu) -> bool {
    if cpu.vcpu().arch.events.any() {
        return false;
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        let requested = vmcs::read(Field::GUEST_INTERRUPT_STATUS) as u8;
        return cpu.apic().will_deliver(requested);
    }
    let Some(vector) = cpu.apic().pending() else { return false };
    // Nothing is injected yet, and HLT has ended the shadow of STI: the window that may have been asked for is here.
    let waits = take_interrupt(cpu, vector);
    note_priority(cpu);
    exit_when_it_can(waits);
    true
}

/// Whether something is pending that would end the loaded vCPU's HLT.
pub fn is_pending(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    let on = interrupts_on();
    let pending = ends_wait(vcpu, cpu.apic(), on);
    if !pending && !on {
        deadlock::check(vcpu);
    }
    pending
}

/// Whether something is pending for a vCPU with this APIC that would end its HLT. `on`: interrupts are.
fn ends_wait(vcpu: &Vcpu, apic: &mut LocalApic<'_>, on: bool) -> bool {
    on && apic.is_pending() || vcpu.arch.events.any() && events::end_wait(&vcpu.arch.events, apic, on)
}

/// The timer of the loaded vCPU may ring, or another device that it keeps time for. Returns whether the APIC's did.
pub fn expire_timer(cpu: &mut Cpu) -> bool {
    let now = timer::now();
    let vcpu = cpu.vcpu();
    if vcpu.arch.watch.is_over(now) {
        vcpu.vm().arch.devices.pit.expire(vcpu.vm());
    }
    let rang = cpu.apic().expire_timer(now) == Received::Interrupt;
    deadline::update(cpu);
    rang
}

/// The timer's interrupt came while this CPU idled, or worked for the vCPU that is loaded. Returns whether the vCPU got one.
pub fn take_timer(cpu: &mut Cpu) -> bool {
    if let Some(vector) = cpu.apic().lent_timer() {
        timer::clear_expired();
        return cpu.apic().post(vector) == Received::Interrupt;
    }
    if deadline::due(cpu).1 {
        return expire_timer(cpu);
    }
    // The guest may have the timer, now that the interrupt of another deadline is gone.
    deadline::update(cpu);
    false
}

/// Brings a vCPU's interrupts onto this CPU. `fresh`: it has not run since it was reset.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu, fresh: bool) {
    cpu.set_apic_base(vcpu.arch.pages.base());
    Cpu::note_window(false);
    if fresh {
        virtual_apic::write_controls(cpu);
    } else {
        cpu.apic_level = vcpu.arch.apic_level_now();
        if cpu.apic_level == ApicVirtualization::Registers {
            cpu.threshold = vmcs::read(Field::TPR_THRESHOLD) as u8;
        }
    }
    expire_timer(cpu);
    pull(cpu);
}

/// Saves a vCPU's interrupts, while its VMCS is still there. Returns when it must be woken if it sleeps: now, if something is pending that ends that.
pub fn put(cpu: &mut Cpu, mut loaded: Loaded<'_>) -> Option<u64> {
    deadline::release(cpu, loaded.borrow());
    let vcpu = loaded.vcpu();
    let apic = loaded.apic();
    if ends_wait(vcpu, apic, interrupts_on()) {
        return Some(0);
    }
    apic.timer_deadline().into_iter().chain(vcpu.arch.watch.next()).min()
}

/// Does what a vCPU's write to its local APIC causes elsewhere. Its own interrupts are left to [`pull`].
pub fn apply(cpu: &mut Cpu, effect: Effect) {
    let vcpu = cpu.vcpu();
    match effect {
        Effect::None => {}
        Effect::Send(message) => send(vcpu.vm(), message, vcpu.arch.index as u32, Some(cpu)),
        Effect::End(vector) => {
            vcpu.vm().arch.io_apic.lock().end(vector);
            send_from_io_apic(vcpu.vm(), Some(cpu));
        }
        Effect::Timer => deadline::update(cpu),
        Effect::Reclaim { offset, value } => {
            deadline::reclaim(cpu);
            cpu.apic().write(offset, value, timer::now());
            deadline::update(cpu);
        }
    }
}
