//! Direct IPIs (`ipi = "direct"`, docs/x86-ipi.md): a trusted guest posts interrupts in the posted-interrupt
//! descriptors of its vCPUs and sends notifications through the physical ICR, an untrusted one (`ipi = "gate"`,
//! docs/x86-gate.md) through the gate. Stile keeps the descriptors' notification vector and destination up to date, wakes
//! vCPUs that are not loaded, and tolerates stray interrupts of the guest. Of what the guest writes to descriptors Stile
//! reads only the requests.

use core::sync::atomic::Ordering;

use stile_apic::{GeneralProtection, Mode, Pages};
use stile_board::pc;

use super::descriptors::{self, Direct, SENDS, TIMER, mapping};
use super::virtual_apic;
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::idt;
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::xapic;
use crate::arch::x86_64::interrupts::{deadline, delivery};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vmx::exit;
use crate::arch::x86_64::vmx::extension::{self, primary, secondary};
use crate::arch::x86_64::vmx::gate::Gate;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::{self, Loaded};
use crate::memory::TableFrames;
use crate::vm::{self, Vcpu};

/// [`Field::GUEST_ACTIVITY`]: HLT.
const HALTED: u64 = 1;

/// Whether any VM may send any interrupt to any CPU.
pub fn any() -> bool {
    idt::FOREIGN.load(Ordering::Relaxed)
}

/// Reads [`pc::msr::IPI_CONTROL`]; `None` if the VM does not have it.
pub fn control(cpu: &Cpu) -> Option<u64> {
    let vcpu = cpu.vcpu();
    vcpu.vm().arch.direct.as_ref()?;
    let count = vcpu.vm().vcpus.len() as u64;
    Some(pc::IPI_DESCRIPTORS | count << 4 | u64::from(vcpu.arch.direct.get()))
}

/// Writes [`pc::msr::IPI_CONTROL`].
pub fn set_control(cpu: &mut Cpu, value: u64) -> Option<Result<(), GeneralProtection>> {
    let vcpu = cpu.vcpu();
    let offered = vcpu.vm().arch.direct.as_ref()?.features(vcpu.vm().techniques.timer);
    let pages = vcpu.arch.pages;
    // The gate's code is 64-bit, and in other modes interrupts during VMFUNC would be lost.
    let runs = gate_of(vcpu).is_none() || cr0::runs_64_bit_code();
    let allowed = if offered & pc::features::DIRECT_TIMER != 0 { SENDS | TIMER } else { SENDS };
    match u8::try_from(value) {
        Ok(0) => end(cpu),
        Ok(on)
            if on & SENDS != 0
                && on & !allowed == 0
                && runs
                && pages.mode() == Mode::X2Apic
                && pages.enabled()
                && share_descriptors(vcpu) =>
        {
            choose(cpu, on);
        }
        _ => return Some(Err(GeneralProtection)),
    }
    Some(Ok(()))
}

/// Writes [`pc::msr::IPI_COMMAND`].
pub fn command(cpu: &mut Cpu, value: u64) -> Option<Result<(), GeneralProtection>> {
    const ICR: u32 = msr::X2APIC + 0x30;
    cpu.vcpu().vm().arch.direct.as_ref()?;
    let effect = cpu.apic().write_msr(ICR, value, 0);
    Some(effect.map(|effect| delivery::apply(cpu, effect)))
}

/// Disables direct IPIs of the loaded vCPU, on its request, or because its APIC was disabled, as by a kernel before
/// kexec.
pub fn end(cpu: &mut Cpu) {
    if cpu.vcpu().arch.direct.is_on() {
        choose(cpu, 0);
    }
}

/// Changes what is enabled. The caller calls [`delivery::pull`] for what this posts.
fn choose(cpu: &mut Cpu, on: u8) {
    let vcpu = cpu.vcpu();
    let (had_timer, has_timer) = (vcpu.arch.direct.has_timer(), on & TIMER != 0);
    if had_timer != has_timer {
        let posted = deadline::reclaim(cpu);
        if had_timer && !posted {
            // Nothing would clear the request of a timer that is armed, or was.
            vcpu.arch.pages.withdraw(cpu.apic().timer_vector());
        }
    }
    vcpu.arch.direct.set(on);
    open_gate(cpu, vcpu);
    let passes_deadline = cpu.apic().lent_timer().is_some();
    virtual_apic::write_msr_bitmap(vcpu, passes_deadline);
    trap_halts(cpu.waiting_trapped, cpu.loaded());
    if had_timer != has_timer {
        deadline::update(cpu);
    }
}

/// Closes the slot of a vCPU that leaves this CPU or is powered off: notifications of it through the gate exit.
/// [`kick_siblings`] follows.
pub fn close(cpu: &mut Cpu, vcpu: &'static Vcpu) {
    let Some(gate) = gate_of(vcpu) else { return };
    gate.close(vcpu.arch.index);
    cpu.virt.closed = Some(vcpu);
}

/// Kicks the siblings of the vCPU whose slot was closed, up to 63, without the schedule's lock. One in the gate may have written
/// this CPU to its APIC's destination register: a kick makes it exit and restart.
#[cold]
fn kick_siblings_of(vcpu: &Vcpu) {
    let siblings = vcpu.vm().vcpus.iter().filter(|sibling| sibling.arch.index != vcpu.arch.index && sibling.arch.direct.is_on());
    siblings.filter_map(|sibling| cpu::running_on(sibling)).for_each(apic::kick);
}

/// Kicks the siblings of a vCPU whose slot was closed, if any.
#[inline(always)]
pub fn kick_siblings(cpu: &mut Cpu) {
    if let Some(vcpu) = cpu.virt.closed.take() {
        kick_siblings_of(vcpu);
    }
}

fn gate_of(vcpu: &Vcpu) -> Option<&'static Gate> {
    vcpu.vm().arch.direct.as_ref().and_then(Direct::gate)
}

/// A slot of the gate that was entered.
pub enum Slot {
    /// There is no such vCPU.
    Absent,
    /// It is open.
    Open,
    /// It was closed, and its vCPU was notified.
    Notified,
}

/// Notifies a vCPU whose slot of the gate is closed, for the loaded vCPU, which has entered it.
pub fn notify_by_exit(cpu: &mut Cpu, slot: usize) -> Slot {
    let Some(gate) = gate_of(cpu.vcpu()) else { return Slot::Absent };
    // A slot without a vCPU is never open.
    if !gate.is_closed(slot) {
        Slot::Open
    } else if notify_slot(cpu, slot) {
        Slot::Notified
    } else {
        Slot::Absent
    }
}

/// Notifies the vCPU of a slot of the gate for the loaded vCPU. Returns false if there is no such vCPU.
pub fn notify_slot(cpu: &mut Cpu, slot: usize) -> bool {
    let sender = cpu.vcpu();
    let Some(&target) = sender.vm().vcpus.get(slot) else { return false };
    delivery::notify(target, Some(cpu), true);
    true
}

/// Applies to the loaded vCPU whether it may enter the gate, if its VM has one.
fn open_gate(cpu: &mut Cpu, vcpu: &Vcpu) {
    let Some(gate) = gate_of(vcpu) else { return };
    let on = vcpu.arch.direct.is_on();
    let controls = vmcs::read(Field::SECONDARY_CONTROLS) & !u64::from(secondary::VM_FUNCTIONS);
    if on {
        vmcs::write(Field::VM_FUNCTION_CONTROLS, extension::EPTP_SWITCHING);
        vmcs::write(Field::EPTP_LIST, gate.list);
        cpu.virt.view = gate.own;
        gate.clean(cpu.index);
        xapic::park();
    }
    exit::gate(on);
    vmcs::write(Field::SECONDARY_CONTROLS, if on { controls | u64::from(secondary::VM_FUNCTIONS) } else { controls });
}

/// Maps the descriptors of all vCPUs of a VM, once. Returns false on failure.
fn share_descriptors(vcpu: &Vcpu) -> bool {
    let vm = vcpu.vm();
    let (table, mut arena) = (vm.arch.tables.table(), vm.arch.tables.arena());
    let mut table = table.lock();
    vm.vcpus.iter().enumerate().all(|(index, vcpu)| {
        let page = mapping(index, vcpu.arch.pages_at + Pages::DESCRIPTOR as u64);
        table.translate(&TableFrames, page.address).is_ok() || table.map(&mut arena, page).is_ok()
    })
}

/// Selects whether HLT exits for the loaded vCPU, if its VM has direct IPIs.
pub fn trap_halts(trapped: bool, loaded: Loaded<'_>) {
    let vcpu = loaded.vcpu();
    if vcpu.vm().arch.direct.is_none() {
        return;
    }
    let exits = vcpu.arch.direct.halts_exit(trapped);
    let controls = vmcs::read(Field::PRIMARY_CONTROLS) & !u64::from(primary::HLT);
    vmcs::write(Field::PRIMARY_CONTROLS, if exits { controls | u64::from(primary::HLT) } else { controls });
    if exits {
        catch_halt(loaded);
    }
}

/// If the loaded vCPU waits in HLT without an exit, takes over the wait, so that the scheduler sees it.
fn catch_halt(loaded: Loaded<'_>) {
    if vmcs::read(Field::GUEST_ACTIVITY) == HALTED {
        vmcs::write(Field::GUEST_ACTIVITY, 0);
        loaded.context().halted = true;
    }
}

/// Called at load: notifications target this CPU, where the processor takes them.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu) {
    if vcpu.vm().arch.direct.is_none() {
        return;
    }
    trap_halts(cpu.waiting_trapped, cpu.loaded());
    open_gate(cpu, vcpu);
    let id = apic::id_of(cpu.index);
    if let Some(gate) = gate_of(vcpu) {
        gate.open(vcpu.arch.index, id);
    }
    if vcpu.arch.pages.redirect(vector::POSTED, id) {
        delivery::pull(cpu);
    }
}

/// Called before put, with the VMCS current: notifications become wake-ups. Returns whether one is outstanding.
pub fn put(cpu: &mut Cpu, loaded: Loaded<'_>) -> bool {
    let vcpu = loaded.vcpu();
    if vcpu.vm().arch.direct.is_none() {
        return false;
    }
    catch_halt(loaded);
    close(cpu, vcpu);
    vcpu.arch.pages.redirect(vector::WAKE, apic::id_of(cpu.index))
}

/// Wakes the vCPUs that are not running and have posted interrupts.
fn posted() -> impl Iterator<Item = &'static Vcpu> {
    let vcpus = vm::all().filter(|vm| vm.arch.direct.is_some()).flat_map(|vm| vm.vcpus.iter().copied());
    vcpus.filter(|vcpu| vcpu.arch.pages.has_posted() && cpu::running_on(vcpu).is_none())
}

/// Handles a wake-up taken from a guest, which continues.
#[cold]
pub fn wake_beside(cpu: &mut Cpu) {
    posted().for_each(|vcpu| cpu::wake_beside(cpu, vcpu));
}

/// Handles a wake-up, or a notification for the loaded, waiting vCPU, while this CPU is idle.
pub fn wake_from_idle(cpu: &Cpu) {
    if descriptors::ANY.load(Ordering::Relaxed) {
        posted().for_each(|vcpu| cpu::wake_from_idle(cpu, vcpu));
    }
}

/// Handles an interrupt with the spurious vector, which needs an EOI only if a guest sent it.
#[cold]
pub fn end_spurious() {
    if any() && apic::in_service(vector::SPURIOUS) {
        apic::end_of_interrupt();
    }
}
