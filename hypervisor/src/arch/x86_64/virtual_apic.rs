//! What the processor does for the loaded vCPU's local APIC: the VMCS's part of it (the manual, "APIC Virtualization and Virtual
//! Interrupts"). The registers are in the vCPU's `Pages`, whether the processor works on them or not.

use stile_apic::{LocalApic, Mode, Status, is_kept, offset};
use stile_blob::ApicVirtualization;

use super::apic::vector;
use super::cpu::Cpu;
use super::instructions::msr;
use super::vmcs::{self, Field};
use super::vmx::{self, pin, primary, secondary};
use crate::console::log;

/// What is done of what was asked for, in this VM: what the CPU can't do is not, and the operator is told.
pub fn choose(asked: ApicVirtualization) -> ApicVirtualization {
    let level = asked.min(vmx::features().apic);
    if level < asked {
        let what = match level {
            ApicVirtualization::Off => "virtual-APIC page",
            ApicVirtualization::Registers => "virtual-interrupt delivery",
            _ => "posted interrupts",
        };
        let words = ApicVirtualization::WORDS;
        let word = words.iter().find(|(_, of)| *of == level).map_or("", |(word, _)| word);
        log!("this CPU has no {what}: APIC virtualization is \"{word}\"");
    }
    level
}

/// Opens in an MSR bitmap what the processor answers for an x2APIC: registers that only hold a value, the task priority, and with
/// delivery the end of an interrupt and interrupts to oneself.
pub fn open_x2apic(bitmap: &mut [u8], level: ApicVirtualization) {
    const WRITES: usize = 2048;
    let delivers = level >= ApicVirtualization::Delivery;
    let mut open = |half: usize, register: u32| bitmap[half + register as usize / 8] &= !(1 << (register % 8));
    for register in (msr::X2APIC..msr::X2APIC + 0x100).filter(|&register| is_kept(register, delivers)) {
        open(0, register);
    }
    let written = [offset::TPR, offset::EOI, offset::SELF_IPI];
    for register in written.into_iter().take(if delivers { written.len() } else { 1 }) {
        open(WRITES, msr::X2APIC + (register >> 4));
    }
}

/// Writes the controls that depend on the mode of the loaded vCPU's APIC, and tells the processor its state.
pub fn write_controls(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let (arch, place, features) = (&vcpu.arch, &vcpu.vm().arch.place, vmx::features());
    let (mut pin, mut primary, mut secondary) = (features.pin, features.primary | primary::HLT, features.secondary);
    let mut msr_bitmap = place.msr_bitmap;
    let mode = arch.pages.mode();
    cpu.apic_level = arch.apic_level_now();
    if cpu.apic_level >= ApicVirtualization::Registers {
        primary = primary & !(primary::CR8_LOAD | primary::CR8_STORE) | primary::TPR_SHADOW;
        secondary |= secondary::APIC_REGISTERS;
        if mode == Mode::X2Apic {
            secondary |= secondary::X2APIC_MODE;
            msr_bitmap = place.x2apic_bitmap;
        } else {
            secondary |= secondary::APIC_ACCESSES;
        }
        vmcs::write(Field::VIRTUAL_APIC, arch.pages_at);
        vmcs::write(Field::APIC_ACCESS, place.apic_access);
        vmcs::write(Field::TPR_THRESHOLD, 0);
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        secondary |= secondary::INTERRUPT_DELIVERY;
    }
    if cpu.apic_level == ApicVirtualization::Posted {
        pin |= pin::POSTED_INTERRUPTS;
        vmcs::write(Field::POSTED_INTERRUPTS, arch.pages_at + stile_apic::Pages::DESCRIPTOR as u64);
        vmcs::write(Field::POSTED_INTERRUPT_VECTOR, vector::POSTED.into());
    }
    vmcs::write(Field::PIN_CONTROLS, pin.into());
    vmcs::write(Field::PRIMARY_CONTROLS, primary.into());
    vmcs::write(Field::SECONDARY_CONTROLS, secondary.into());
    vmcs::write(Field::MSR_BITMAP, msr_bitmap);
    cpu.apic().forget_status();
}

/// Tells a processor that delivers interrupts which there are, and whose ends must exit.
#[cold]
pub fn write_status(status: Status) {
    vmcs::write(Field::GUEST_INTERRUPT_STATUS, status.interrupts.into());
    let fields = [Field::EOI_EXIT_0, Field::EOI_EXIT_1, Field::EOI_EXIT_2, Field::EOI_EXIT_3];
    for (field, word) in fields.into_iter().zip(status.exits.words()) {
        vmcs::write(field, word);
    }
}

/// Has the processor exit when the task priority falls below that of an interrupt which waits for this, and for nothing else.
pub fn write_threshold(apic: &LocalApic<'_>) {
    let class = apic.request().map_or(0, |vector| vector >> 4);
    let threshold = if class <= apic.task_priority() >> 4 { class } else { 0 };
    vmcs::write(Field::TPR_THRESHOLD, threshold.into());
}
