//! APIC virtualization of the loaded vCPU in the VMCS (the manual, "APIC Virtualization and Virtual Interrupts"). The
//! registers are in the vCPU's `Pages`, whether the processor virtualizes them or not.

use stile_apic::{Mode, Pages, Status};
use stile_blob::ApicVirtualization;
use stile_board::pc;

use super::descriptors::Direct;
use crate::arch::x86_64::host::apic::vector;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vmx::extension::{self, pin, primary, secondary};
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::console::log;
use crate::vm::Vcpu;

/// Whether a processor may deliver posted interrupts without an exit.
pub const MAY_DELIVER: bool = true;

/// Returns the highest supported level of APIC virtualization.
pub fn supported() -> ApicVirtualization {
    extension::features().apic
}

/// Returns the requested level of APIC virtualization, or the highest supported one, which is logged.
pub fn choose(asked: ApicVirtualization) -> ApicVirtualization {
    let level = asked.min(supported());
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

/// Updates the loaded vCPU after a change of its APIC's mode or address.
pub fn moved(cpu: &mut Cpu) {
    write_controls(cpu);
    let vm = cpu.vcpu().vm();
    if let Some(page) = &vm.arch.place.apic_access {
        page.choose(|| vm.vcpus.iter().all(|vcpu| vcpu.arch.pages.is_at(pc::LOCAL_APIC)));
        // Other CPUs' stale translations of the page serve only vCPUs whose APIC is there; other vCPUs come here, or
        // flush at load.
        extension::invalidate_ept(vm.arch.place.ept);
    }
}

/// Writes the controls that depend on the mode of the loaded vCPU's APIC, and its interrupt status.
pub fn write_controls(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let (arch, place, features) = (&vcpu.arch, &vcpu.vm().arch.place, extension::features());
    let halts = if arch.direct.halts_exit(cpu.waiting_trapped) { primary::HLT } else { 0 };
    let (mut pin, mut primary, mut secondary) = (features.pin, features.primary | halts, features.secondary);
    let mode = arch.pages.mode();
    cpu.apic_level = arch.apic_level_now();
    if cpu.apic_level >= ApicVirtualization::Registers {
        primary = primary & !(primary::CR8_LOAD | primary::CR8_STORE) | primary::TPR_SHADOW;
        secondary |= secondary::APIC_REGISTERS;
        if mode == Mode::X2Apic {
            secondary |= secondary::X2APIC_MODE;
        } else if let Some(page) = &place.apic_access {
            secondary |= secondary::APIC_ACCESSES;
            vmcs::write(Field::APIC_ACCESS, page.address);
        }
        vmcs::write(Field::VIRTUAL_APIC, arch.pages_at);
        vmcs::write(Field::TPR_THRESHOLD, 0);
        cpu.threshold = 0;
    }
    if cpu.apic_level >= ApicVirtualization::Delivery {
        secondary |= secondary::INTERRUPT_DELIVERY;
    }
    if cpu.apic_level == ApicVirtualization::Posted {
        pin |= pin::POSTED_INTERRUPTS;
        vmcs::write(Field::POSTED_INTERRUPTS, arch.pages_at + Pages::DESCRIPTOR as u64);
        vmcs::write(Field::POSTED_INTERRUPT_VECTOR, vector::POSTED.into());
    }
    vmcs::write(Field::PIN_CONTROLS, pin.into());
    vmcs::write(Field::PRIMARY_CONTROLS, primary.into());
    Cpu::note_window(false);
    let context = cpu.loaded().context();
    let (pauses, shadowing) = (context.pauses.control(), context.shadowing);
    vmcs::write(Field::SECONDARY_CONTROLS, u64::from(secondary) | pauses | shadowing);
    write_msr_bitmap(vcpu, false);
    let delivers = cpu.apic_level >= ApicVirtualization::Delivery;
    cpu.apic().set_assisted(delivers);
}

/// Selects the MSR bitmap of the loaded vCPU by its APIC's mode and by whether IA32_TSC_DEADLINE is passed through.
pub fn write_msr_bitmap(vcpu: &Vcpu, passes_deadline: bool) {
    let place = &vcpu.vm().arch.place;
    let virtualized = vcpu.arch.apic_level_now() >= ApicVirtualization::Registers && vcpu.arch.pages.mode() == Mode::X2Apic;
    let bitmaps = match &vcpu.vm().arch.direct {
        Some(Direct::Icr(bitmaps)) if virtualized && vcpu.arch.direct.is_on() => bitmaps,
        _ if virtualized => &place.x2apic_bitmaps,
        _ => &place.msr_bitmaps,
    };
    vmcs::write(Field::MSR_BITMAP, bitmaps[usize::from(passes_deadline)]);
}

/// Writes RVI, SVI and the EOI-exit bitmap for virtual-interrupt delivery.
#[cold]
pub fn write_status(status: Status) {
    vmcs::write(Field::GUEST_INTERRUPT_STATUS, status.interrupts.into());
    let fields = [Field::EOI_EXIT_0, Field::EOI_EXIT_1, Field::EOI_EXIT_2, Field::EOI_EXIT_3];
    for (field, word) in fields.into_iter().zip(status.exits.map(|exits| exits.words()).into_iter().flatten()) {
        vmcs::write(field, word);
    }
}

/// Raises RVI, the low byte of "Guest Interrupt Status", for a further interrupt.
#[inline(always)]
pub fn request(vector: u8) {
    let status = vmcs::read(Field::GUEST_INTERRUPT_STATUS);
    if (status as u8) < vector {
        vmcs::write(Field::GUEST_INTERRUPT_STATUS, status & !0xff | u64::from(vector));
    }
}

/// Updates the TPR threshold after a change of the loaded vCPU's requests, if the processor virtualizes the TPR.
#[inline(always)]
pub fn note_priority(cpu: &mut Cpu) {
    if cpu.apic_level == ApicVirtualization::Registers {
        write_threshold(cpu);
    }
}

/// Sets the TPR threshold, so that the processor exits when the TPR falls below the priority of an interrupt that
/// only it blocks.
fn write_threshold(cpu: &mut Cpu) {
    let apic = cpu.apic();
    let class = apic.request().map_or(0, |vector| vector >> 4);
    let threshold = if class <= apic.task_priority() >> 4 { class } else { 0 };
    if cpu.threshold != threshold {
        cpu.threshold = threshold;
        vmcs::write(Field::TPR_THRESHOLD, threshold.into());
    }
}
