//! Direct interprocessor interrupts (`ipi = "direct"`, docs/x86-ipi.md): a trusted guest posts interrupts in the posted-interrupt descriptors
//! of its vCPUs and sends the notifications by the physical ICR. Stile keeps the notifications' vector and destination right, wakes vCPUs that
//! are loaded nowhere, and survives all that the guest may send by mistake. What the guest writes to descriptors is no input for Stile, but
//! for the requests.

use core::sync::atomic::Ordering;

use stile_apic::{GeneralProtection, Mode, Pages};
use stile_board::pc;

use super::descriptors::mapping;
use super::{delivery, virtual_apic};
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::idt;
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx::primary;
use crate::cpu::{self, Loaded};
use crate::memory::TableFrames;
use crate::vm::{self, Vcpu};

/// In [`Field::GUEST_ACTIVITY`]: the guest waits by HLT.
const HALTED: u64 = 1;
/// In [`pc::msr::IPI_CONTROL`].
const SENDS: u64 = 1;

/// Whether any VM may send interprocessor interrupts itself.
pub fn any() -> bool {
    idt::FOREIGN.load(Ordering::Relaxed)
}

/// Reads [`pc::msr::IPI_CONTROL`]; None if the VM does not have it.
pub fn control(cpu: &Cpu) -> Option<u64> {
    let vcpu = cpu.vcpu();
    vcpu.vm().arch.direct.as_ref()?;
    let count = vcpu.vm().vcpus.len() as u64;
    Some(pc::IPI_DESCRIPTORS | count << 4 | if vcpu.arch.direct.is_on() { SENDS } else { 0 })
}

/// Writes it.
pub fn set_control(cpu: &mut Cpu, value: u64) -> Option<Result<(), GeneralProtection>> {
    let vcpu = cpu.vcpu();
    vcpu.vm().arch.direct.as_ref()?;
    let pages = vcpu.arch.pages;
    match value {
        0 => end(cpu),
        SENDS if pages.mode() == Mode::X2Apic && pages.enabled() && share_descriptors(vcpu) => choose(cpu, true),
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

/// The loaded vCPU sends no interprocessor interrupts itself any more: it said so, or its APIC was disabled, as by a kernel that gives way to
/// another one.
pub fn end(cpu: &mut Cpu) {
    if cpu.vcpu().arch.direct.is_on() {
        choose(cpu, false);
    }
}

fn choose(cpu: &mut Cpu, on: bool) {
    let vcpu = cpu.vcpu();
    vcpu.arch.direct.set(on);
    let passes_deadline = cpu.apic().lent_timer().is_some();
    virtual_apic::write_msr_bitmap(vcpu, passes_deadline);
    trap_halts(cpu.waiting_trapped, cpu.loaded());
}

/// Maps the descriptors of all vCPUs of a VM, once. False if that fails.
fn share_descriptors(vcpu: &Vcpu) -> bool {
    let vm = vcpu.vm();
    let (table, mut arena) = vm.arch.table();
    let mut table = table.lock();
    vm.vcpus.iter().enumerate().all(|(index, vcpu)| {
        let page = mapping(index, vcpu.arch.pages_at + Pages::DESCRIPTOR as u64);
        table.translate(&TableFrames, page.address).is_ok() || table.map(&mut arena, page).is_ok()
    })
}

/// Chooses whether the loaded vCPU exits as it waits by HLT, if its VM has direct interprocessor interrupts.
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

/// If the loaded vCPU waits by HLT inside the guest, takes the wait over, so that the scheduler learns of it.
fn catch_halt(loaded: Loaded<'_>) {
    if vmcs::read(Field::GUEST_ACTIVITY) == HALTED {
        vmcs::write(Field::GUEST_ACTIVITY, 0);
        loaded.context().halted = true;
    }
}

/// A vCPU was loaded here: notifications come to this CPU, where the processor takes them.
pub fn load(cpu: &mut Cpu, vcpu: &Vcpu) {
    if vcpu.vm().arch.direct.is_none() {
        return;
    }
    trap_halts(cpu.waiting_trapped, cpu.loaded());
    if vcpu.arch.pages.redirect(vector::POSTED, apic::id_of(cpu.index)) {
        delivery::pull(cpu);
    }
}

/// A vCPU is about to be put, and its VMCS still current: notifications are Stile's from now on. Returns whether one is outstanding.
pub fn put(cpu: &Cpu, loaded: Loaded<'_>) -> bool {
    let vcpu = loaded.vcpu();
    if vcpu.vm().arch.direct.is_none() {
        return false;
    }
    catch_halt(loaded);
    vcpu.arch.pages.redirect(vector::WAKE, apic::id_of(cpu.index))
}

/// The vCPUs for which something was posted, and which don't run.
fn posted() -> impl Iterator<Item = &'static Vcpu> {
    let vcpus = vm::all().filter(|vm| vm.arch.direct.is_some()).flat_map(|vm| vm.vcpus.iter().copied());
    vcpus.filter(|vcpu| vcpu.arch.pages.has_posted() && cpu::running_on(vcpu).is_none())
}

/// A wake-up came while a guest ran, which goes on.
#[cold]
pub fn wake_beside(cpu: &mut Cpu) {
    posted().for_each(|vcpu| cpu::wake_beside(cpu, vcpu));
}

/// A wake-up, or a notification for the vCPU that is loaded and waits, came while this CPU idled.
pub fn wake_from_idle(cpu: &Cpu) {
    if any() {
        posted().for_each(|vcpu| cpu::wake_from_idle(cpu, vcpu));
    }
}

/// An interrupt of the vector of spurious ones came, which is ended only if a guest sent it.
#[cold]
pub fn end_spurious() {
    if any() && apic::in_service(vector::SPURIOUS) {
        apic::end_of_interrupt();
    }
}
