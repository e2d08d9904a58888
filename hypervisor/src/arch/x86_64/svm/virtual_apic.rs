//! APIC virtualization: absent. Every access to an APIC exits, and interrupts are injected.

use stile_apic::Status;
use stile_blob::ApicVirtualization;
use stile_svm::Field;

use super::state;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::window;
use crate::console::log;
use crate::vm::Vcpu;

/// Whether a processor may deliver posted interrupts without an exit.
pub const MAY_DELIVER: bool = false;

/// The highest supported level.
pub fn supported() -> ApicVirtualization {
    ApicVirtualization::Off
}

/// Returns the level, and logs that it is lower than the requested one.
pub fn choose(asked: ApicVirtualization) -> ApicVirtualization {
    if asked != ApicVirtualization::Off {
        log!("AMD-V: APIC virtualization (AVIC) is not implemented: it is \"off\"");
    }
    ApicVirtualization::Off
}

/// The loaded vCPU's APIC has changed its mode or address.
pub fn moved(cpu: &mut Cpu) {
    cpu.virt.forget_sites();
    write_controls(cpu);
}

/// Initializes the loaded vCPU.
pub fn write_controls(cpu: &mut Cpu) {
    cpu.apic_level = ApicVirtualization::Off;
    window::exit_when_it_can(false);
    cpu.apic().set_assisted(false);
}

/// The deadline timer is not passed through.
pub fn write_msr_bitmap(_vcpu: &Vcpu, _passes_deadline: bool) {}

/// The processor delivers no virtual interrupts itself.
pub fn write_status(_status: Status) {}

/// As [`write_status`].
pub fn request(_vector: u8) {}

/// Writes the loaded vCPU's task priority to its VMCB, where reads of CR8 find it.
#[inline(always)]
pub fn note_priority(cpu: &mut Cpu) {
    let priority = u64::from(cpu.apic().task_priority() >> 4);
    if state::read(Field::GUEST_TPR) != priority {
        state::write(Field::GUEST_TPR, priority);
    }
}
