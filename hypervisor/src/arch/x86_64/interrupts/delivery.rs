//! Delivery of guests' interrupts: from device lines and APIC messages to vCPUs (models: crate `stile-apic`).

use stile_apic::{Acceptors, Arbitration, Batch, Delivery, Destination, Effect, Message, PINS, Received};
use stile_blob::ApicVirtualization;

use super::window::{can_interrupt, exit_when_it_can, interrupts_on};
use super::{deadline, deadlock, events};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::{apic, timer};
use crate::arch::x86_64::vcpu::inject::{EXTERNAL, NMI, TYPE, VALID};
use crate::arch::x86_64::virt::paravirtual_eoi::LocalApic;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::virt::virtual_apic;
use crate::cpu::{self, Loaded};
use crate::vm::{Vcpu, Vm};

/// Sender of messages of an I/O APIC and of functions: no local APIC has this identifier.
const IO_APIC: u32 = u32::MAX;

/// Sends a message to its target vCPUs. `cpu` is present in the handler of an exit whose vCPU is re-entered, which
/// then checks its own interrupts. Returns whether a level-triggered message was accepted.
pub fn send(vm: &'static Vm, message: Message, sender: u32, mut cpu: Option<&mut Cpu>) -> bool {
    let is_target = |vcpu: &&Vcpu| vcpu.arch.pages.is_target(message.destination, sender);
    if message.delivery == Delivery::LowestPriority {
        return lowest(vm, message.destination, sender).is_some_and(|vcpu| receive(vcpu, message, cpu));
    }
    if let Destination::Physical(id) = message.destination {
        return with_id(vm, id, is_target).is_some_and(|vcpu| receive(vcpu, message, cpu));
    }
    let mut accepted = false;
    for vcpu in vm.vcpus.iter().copied().filter(is_target) {
        accepted |= receive(vcpu, message, cpu.as_deref_mut());
    }
    accepted
}

/// Sends a message of a PCI function, as [`send`].
pub fn send_of_device(vm: &'static Vm, message: Message, cpu: Option<&mut Cpu>) {
    send(vm, message, IO_APIC, cpu);
}

/// Sends a served device's message to at most one vCPU: the first that it addresses, or with lowest-priority delivery the one that wins
/// arbitration. This bounds the cost for the server's vCPU, which sends it, to one notification.
pub fn send_to_first(vm: &'static Vm, message: Message) {
    let is_single = message.delivery == Delivery::LowestPriority || matches!(message.destination, Destination::Physical(_));
    if is_single {
        send(vm, message, IO_APIC, None);
    } else if let Some(vcpu) = vm.vcpus.iter().copied().find(|vcpu| is_addressed(vcpu, message)) {
        receive(vcpu, message, None);
    }
}

/// Signals an edge on an input of the I/O APIC, for another VM than the running one.
pub fn pulse_input(vm: &'static Vm, input: usize) {
    let mut io_apic = vm.arch.io_apic.lock();
    io_apic.set_line(input, true);
    io_apic.set_line(input, false);
    drop(io_apic);
    send_from_io_apic(vm, None);
}

/// Whether a message of a PCI function addresses a vCPU of its VM.
pub fn is_addressed(vcpu: &Vcpu, message: Message) -> bool {
    vcpu.arch.pages.is_target(message.destination, IO_APIC)
}

/// Whether a message of a PCI function is an edge-triggered interrupt for this vCPU only, as far as is known without a search of the
/// VM's vCPUs.
#[inline]
pub fn is_only_target(vcpu: &Vcpu, message: Message) -> bool {
    let is_one = matches!(message.destination, Destination::Physical(id) if id == vcpu.arch.id) || vcpu.vm().vcpus.len() == 1;
    is_one && message.delivery == Delivery::Fixed && !message.level && is_addressed(vcpu, message)
}

/// Returns the vCPU whose APIC has the identifier `id`, if `takes` accepts it. Without gaps an identifier is the vCPU's index
/// (`Vcpu::reset`), which is tried first.
fn with_id(vm: &Vm, id: u32, takes: impl Fn(&&Vcpu) -> bool) -> Option<&'static Vcpu> {
    let at = |index: usize| vm.vcpus.get(index).copied().filter(&takes);
    at(id as usize).or_else(|| at(index_beyond_gaps(vm, id)?))
}

/// Returns the index of the vCPU with an identifier, if there are gaps between the VM's identifiers.
#[cold]
fn index_beyond_gaps(vm: &Vm, id: u32) -> Option<usize> {
    let topology = vm.arch.topology;
    if topology.fits_apic_ids() { None } else { topology.vcpu_of(id) }
}

/// The addressed vCPU of the lowest priority. An APIC that software has disabled takes no part ("Lowest Priority Delivery
/// Mode").
fn lowest(vm: &Vm, destination: Destination, sender: u32) -> Option<&'static Vcpu> {
    let takes_part = |vcpu: &&Vcpu| vcpu.arch.pages.is_target(destination, sender) && vcpu.arch.pages.enabled();
    match destination {
        Destination::Physical(id) => with_id(vm, id, takes_part),
        _ => vm.vcpus.iter().copied().filter(takes_part).min_by_key(|vcpu| vcpu.arch.pages.processor_priority()),
    }
}

/// Returns whether a level-triggered message was accepted.
#[inline(always)]
fn receive(vcpu: &'static Vcpu, message: Message, cpu: Option<&mut Cpu>) -> bool {
    let received = vcpu.arch.pages.receive(message);
    receives(vcpu, received, cpu);
    received == Received::Level
}

/// Sends a fixed interrupt from the loaded vCPU's APIC to the one with identifier `to`, which may be itself or
/// absent. `takes` as for [`interrupt_self`].
pub fn send_to_one(cpu: &mut Cpu, to: u32, vector: u8, takes: u64) {
    let own = cpu.vcpu();
    if to == own.arch.id {
        return interrupt_self(cpu, vector, takes);
    }
    // The sender's APIC is in x2APIC mode, where 0xff is an identifier. Identifiers are indexes (`Vcpu::reset`) in any mode of the
    // target's APIC: with gaps between them, the fast path refuses messages to other APICs (`LocalApic::with_gaps`).
    if let Some(vcpu) = own.vm().vcpus.get(to as usize) {
        receives(vcpu, vcpu.arch.pages.interrupt(vector), Some(cpu));
    }
}

/// Signals an edge on pin LINT0 of a vCPU's APIC.
pub fn pulse(vcpu: &'static Vcpu) {
    match vcpu.arch.pages.pulse(0) {
        // ExtINT is a level, which `events` handles.
        Received::External => {}
        received => receives(vcpu, received, None),
    }
}

/// Updates the 8259s' output, which is pin LINT0 of the first vCPU.
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

/// Applies the effect of a message that a vCPU's APIC has received.
#[inline(always)]
fn receives(vcpu: &'static Vcpu, received: Received, cpu: Option<&mut Cpu>) {
    match received {
        Received::Interrupt => notify(vcpu, cpu, vcpu.arch.apic_level == ApicVirtualization::Posted),
        Received::Level => notify(vcpu, cpu, false),
        Received::Startup(page) => events::start_up(vcpu, page),
        Received::Init => events::init(vcpu),
        Received::Nmi => events::nmi(vcpu),
        Received::External => external(vcpu.vm()),
        // SMM is not implemented.
        Received::Nothing | Received::Smi => {}
    }
}

/// Makes a vCPU take a posted interrupt: by an exit of the CPU that runs it, or by a notification if the processor
/// handles it.
pub fn notify(vcpu: &'static Vcpu, cpu: Option<&mut Cpu>, by_itself: bool) {
    let notify_running = || match by_itself {
        true => cpu::running_on(vcpu).inspect(|&there| apic::notify(there)).is_some(),
        false => cpu::kick_if_running(vcpu),
    };
    match cpu {
        None if !by_itself => cpu::notify(vcpu),
        None if !notify_running() => cpu::wake(vcpu),
        // The exit being handled checks for interrupts at its end.
        Some(_) if cpu::runs_here(vcpu) => {}
        Some(cpu) if !notify_running() => cpu::wake_beside(cpu, vcpu),
        None | Some(_) => {}
    }
}

/// Sends the messages that follow from a change of the I/O APIC.
pub fn send_from_io_apic(vm: &'static Vm, mut cpu: Option<&mut Cpu>) {
    // A change makes at most all pins due. Messages that remain are of concurrent changes, whose CPUs send as many.
    for _ in 0..PINS {
        let batch = vm.arch.io_apic.lock().next_batch();
        let Some(batch) = batch else { return };
        let accepted = send_batch(vm, &batch, cpu.as_deref_mut());
        let refused = batch.pins() & !accepted;
        if batch.message().level && refused != 0 {
            vm.arch.io_apic.lock().refused(&batch, refused);
        }
    }
}

/// Returns a mask of the pins whose message a local APIC has accepted, if it is level-triggered. The time does not depend
/// on the number of pins: a guest may let all of them address all vCPUs.
fn send_batch(vm: &'static Vm, batch: &Batch, mut cpu: Option<&mut Cpu>) -> u32 {
    let message = batch.message();
    if batch.pins().is_power_of_two() {
        return if send(vm, message, IO_APIC, cpu) { batch.pins() } else { 0 };
    }
    if message.delivery == Delivery::LowestPriority {
        return arbitrate(vm, batch, cpu);
    }
    let is_addressed = batch.addresses();
    let mut acceptors = Acceptors::default();
    for vcpu in vm.vcpus.iter() {
        if let Some(address) = vcpu.arch.pages.address()
            && is_addressed(address)
            && receive(vcpu, message, cpu.as_deref_mut())
        {
            acceptors.add(address);
        }
    }
    batch.pins_to(&acceptors)
}

/// Sends messages of lowest priority, as [`send_batch`]. Priorities are compared once: a message that an APIC accepts
/// changes its priority only when its vCPU takes the interrupt.
#[cold]
fn arbitrate(vm: &'static Vm, batch: &Batch, mut cpu: Option<&mut Cpu>) -> u32 {
    let mut arbitration = Arbitration::default();
    for (index, vcpu) in vm.vcpus.iter().enumerate() {
        let pages = vcpu.arch.pages;
        if let Some(address) = pages.address().filter(|_| pages.enabled()) {
            arbitration.add(address, pages.processor_priority(), index as u16);
        }
    }
    let mut accepted = 0;
    for (pin, destination) in batch.each() {
        let vcpu = match arbitration.lowest(destination) {
            Some(index) => vm.vcpus.get(usize::from(index)).copied(),
            None if matches!(destination, Destination::Physical(_)) => lowest(vm, destination, IO_APIC),
            None => None,
        };
        if vcpu.is_some_and(|vcpu| receive(vcpu, batch.message(), cpu.as_deref_mut())) {
            accepted |= 1 << pin;
        }
    }
    accepted
}

/// Delivers pending interrupts to the loaded vCPU. Without virtual-interrupt delivery it injects one; if the vCPU is
/// not interruptible, it requests an interrupt window.
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

/// Delivers an edge-triggered interrupt from the loaded vCPU to itself, or of its timer, at an exit that has injected
/// nothing yet; `takes` is nonzero if RFLAGS allows interrupts.
#[inline]
pub fn interrupt_self(cpu: &mut Cpu, vector: u8, takes: u64) {
    let alone = !cpu.vcpu().arch.events.any();
    let delivers = cpu.apic_level >= ApicVirtualization::Delivery;
    if alone && delivers && cpu.apic().request_at_once(vector) {
        virtual_apic::request(vector);
    } else if alone && !delivers && takes != 0 && cpu.apic().take_at_once(vector) {
        state::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
    } else {
        post_self(cpu, vector);
    }
}

/// Fast path of [`pull`] for a kick of the loaded vCPU: injects the only posted interrupt. Returns false if [`pull`] must be called.
#[inline(always)]
pub fn take_posted(cpu: &mut Cpu) -> bool {
    if cpu.apic_level >= ApicVirtualization::Delivery || cpu.vcpu().arch.events.any() || state::injects_at_interrupts() || !can_interrupt()
    {
        return false;
    }
    let Some(vector) = cpu.apic().acknowledge_posted() else { return false };
    state::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
    true
}

/// Fast path of EOI for the loaded vCPU. Returns false, without effect, if more than the EOI itself is to be done.
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
    let takes = state::read(Field::ENTRY_INTERRUPTION) & VALID == 0 && can_interrupt();
    let waits = if takes { take_interrupt(cpu, vector) } else { true };
    note_priority(cpu);
    if waits {
        exit_when_it_can(true);
    }
}

/// Injects the interrupt that the loaded vCPU's APIC has reported as pending. Returns whether another one is pending.
#[inline(always)]
fn take_interrupt(cpu: &mut Cpu, vector: u8) -> bool {
    cpu.apic().take(vector);
    state::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(vector));
    cpu.apic().pending().is_some()
}

/// Has the processor's part of the TPR follow the loaded vCPU's APIC, which may have changed.
#[inline(always)]
fn note_priority(cpu: &mut Cpu) {
    virtual_apic::note_priority(cpu);
}

/// Makes an interrupt or NMI pending again whose delivery to the loaded vCPU another event has replaced, and pulls.
/// `event`: the IDT-vectoring information. The cause of an exception recurs with its instruction.
pub fn put_back(cpu: &mut Cpu, event: u64) {
    match event & TYPE {
        EXTERNAL if cpu.apic().put_back(event as u8) => {}
        EXTERNAL => cpu.vcpu().arch.events.put_back_external(event as u8),
        NMI => events::nmi(cpu.vcpu()),
        _ => {}
    }
    pull(cpu);
}

/// Delivers pending events to the loaded vCPU before entry. Returns false if it stays in HLT: the wake-up was
/// spurious.
pub fn take(cpu: &mut Cpu) -> bool {
    // An event injected at entry ends HLT as well.
    if cpu.loaded().context().halted && state::read(Field::ENTRY_INTERRUPTION) & VALID == 0 && !is_pending(cpu) {
        return false;
    }
    cpu.loaded().context().halted = false;
    pull(cpu);
    true
}

/// Ends the loaded vCPU's HLT, which exited with interrupts enabled, if its APIC has an interrupt to take at entry.
/// Returns false, without effect, if it has none, or the scheduler must run.
#[inline(always)]
pub fn end_hlt_at_once(cpu: &mut Cpu) -> bool {
    if cpu.vcpu().arch.events.any() {
        return false;
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        let requested = state::read(Field::GUEST_INTERRUPT_STATUS) as u8;
        return cpu.apic().will_deliver(requested);
    }
    let Some(vector) = cpu.apic().pending() else { return false };
    // Nothing is injected yet, and HLT has ended blocking by STI: a requested interrupt window is open now.
    let waits = take_interrupt(cpu, vector);
    note_priority(cpu);
    exit_when_it_can(waits);
    true
}

/// Whether a pending event would end the loaded vCPU's HLT.
pub fn is_pending(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    let on = interrupts_on();
    let pending = on && cpu.apic().is_pending() || vcpu.arch.events.any() && events::end_loaded_wait(cpu, on);
    // A load that waits for a server is no HLT: the server ends it.
    if !pending && !on && cpu.loaded().context().halted {
        deadlock::check(vcpu, events::blocks_nmis());
    }
    pending
}

/// Whether a pending event would end the HLT of a vCPU with this APIC, whose VMCS is current. `on`: interrupts are
/// enabled.
fn ends_wait(vcpu: &Vcpu, apic: &mut LocalApic<'_>, on: bool) -> bool {
    on && apic.is_pending() || vcpu.arch.events.any() && events::end_wait(&vcpu.arch.events, apic, on)
}

/// Checks the deadlines of the loaded vCPU's timer and devices. Returns whether the APIC's timer expired.
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

/// Expiry of the loaded vCPU's APIC timer. If the guest has this CPU's timer, its deadline is the processor's.
pub fn timer_expiry(cpu: &mut Cpu) -> Option<u64> {
    let apic = cpu.apic();
    match apic.lent_timer() {
        Some(_) => Some(timer::deadline()).filter(|&deadline| deadline != 0),
        None => apic.timer_deadline(),
    }
}

/// Handles a timer interrupt while this CPU is idle or runs an errand. Returns whether the vCPU's timer expired.
pub fn take_timer(cpu: &mut Cpu) -> bool {
    if let Some(vector) = cpu.apic().lent_timer() {
        timer::clear_expired();
        return cpu.apic().post(vector) == Received::Interrupt;
    }
    if deadline::due(cpu).1 {
        return expire_timer(cpu);
    }
    // The guest may get the timer back once the interrupt of another deadline was taken.
    deadline::update(cpu);
    false
}

/// Handles a notification while this CPU is idle: it may be an expiry of the timer, which the loaded vCPU has. Returns
/// whether its interrupt was posted.
pub fn take_notification(cpu: &mut Cpu) -> bool {
    // An expiry clears the deadline, or leaves it in the past.
    if !cpu.timer.notifies() || timer::deadline() > timer::now() {
        return false;
    }
    timer::clear_expired();
    // Without a request the timer is off, or the guest has had its interrupt.
    let vector = cpu.apic().timer_vector();
    cpu.vcpu().arch.pages.is_preset(vector) && cpu.apic().post(vector) == Received::Interrupt
}

/// Loads a vCPU's interrupt state. `fresh`: it has not run since reset.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu, fresh: bool) {
    cpu.set_apic_base(vcpu.arch.pages.base());
    Cpu::note_window(false);
    if fresh {
        virtual_apic::write_controls(cpu);
    } else {
        cpu.apic_level = vcpu.arch.apic_level_now();
        if cpu.apic_level == ApicVirtualization::Registers {
            cpu.threshold = state::read(Field::TPR_THRESHOLD) as u8;
        }
    }
    cpu.apic().set_eoi_bit(vcpu.arch.msrs.eoi.bit(vcpu.vm()));
    expire_timer(cpu);
    pull(cpu);
}

/// Puts a vCPU's interrupt state, with its VMCS current. Returns its wake-up time if it sleeps: now, if an event is
/// pending.
pub fn put(cpu: &mut Cpu, mut loaded: Loaded<'_>) -> Option<u64> {
    deadline::release(cpu, loaded.borrow());
    let vcpu = loaded.vcpu();
    let apic = loaded.apic();
    apic.set_eoi_bit(None);
    if ends_wait(vcpu, apic, interrupts_on()) {
        return Some(0);
    }
    apic.timer_deadline().into_iter().chain(vcpu.arch.watch.next()).min()
}

/// Applies effects of a vCPU's APIC write on others. Its own interrupts are left to [`pull`].
pub fn apply(cpu: &mut Cpu, effect: Effect) {
    let vcpu = cpu.vcpu();
    match effect {
        Effect::None => {}
        Effect::Send(message) => {
            send(vcpu.vm(), message, vcpu.arch.id, Some(cpu));
        }
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
