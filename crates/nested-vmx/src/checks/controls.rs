//! Checks on VMX controls (SDM, 26.2.1).

use super::rule::{CONTROLS, EntryFailure, Event, Rule, Section, State, rule};
use crate::capability::misc;
use crate::controls::{exit, pin, primary, secondary};
use crate::field::Field;
use crate::group::{Group, Groups};
use crate::result::InstructionError;

const FAILURE: EntryFailure = EntryFailure::Instruction(InstructionError::EntryControls);

pub(super) const SECTIONS: &[Section] = &[
    Section { number: "26.2.1.1", failure: FAILURE, reads: CONTROLS, rules: EXECUTION },
    Section { number: "26.2.1.1", failure: FAILURE, reads: CONTROLS.union(Group::Masks.alone()), rules: TARGETS },
    Section { number: "26.2.1.1", failure: FAILURE, reads: CONTROLS.union(Group::Threshold.alone()), rules: THRESHOLD },
    Section { number: "26.2.1.2", failure: FAILURE, reads: CONTROLS, rules: EXIT },
    Section { number: "26.2.1.3", failure: FAILURE, reads: CONTROLS, rules: ENTRY },
    // Delivery of an error code depends on CR0.PE.
    Section { number: "26.2.1.3", failure: FAILURE, reads: CONTROLS.union(Groups::of(&[Group::Event, Group::Registers])), rules: EVENT },
];

const EXECUTION: &[Rule] = &[
    rule("pin-based controls have allowed settings", |s| s.processor.capabilities.pin.accepts(s.pin)),
    rule("primary controls have allowed settings", |s| s.processor.capabilities.primary.accepts(s.primary)),
    rule("secondary controls have allowed settings", |s| {
        !s.has_primary(primary::SECONDARY) || s.processor.capabilities.secondary.accepts(s.secondary)
    }),
    rule("I/O bitmap A is a page", |s| !s.has_primary(primary::IO_BITMAPS) || s.is_page(Field::IO_BITMAP_A)),
    rule("I/O bitmap B is a page", |s| !s.has_primary(primary::IO_BITMAPS) || s.is_page(Field::IO_BITMAP_B)),
    rule("the MSR bitmap is a page", |s| !s.has_primary(primary::MSR_BITMAPS) || s.is_page(Field::MSR_BITMAP)),
    rule("the virtual-APIC page is a page", |s| !s.has_primary(primary::TPR_SHADOW) || s.is_page(Field::VIRTUAL_APIC)),
    rule("virtual NMIs need NMI exiting", |s| s.has_pin(pin::NMIS) || !s.has_pin(pin::VIRTUAL_NMIS)),
    rule("NMI-window exiting needs virtual NMIs", |s| s.has_pin(pin::VIRTUAL_NMIS) || !s.has_primary(primary::NMI_WINDOW)),
    rule("the APIC-access page is a page", |s| !s.has_secondary(secondary::APIC_ACCESSES) || s.is_page(Field::APIC_ACCESS)),
    rule("x2APIC mode, APIC registers and interrupt delivery need the TPR shadow", |s| {
        const NEED: u32 = secondary::X2APIC_MODE | secondary::APIC_REGISTERS | secondary::INTERRUPT_DELIVERY;
        s.has_primary(primary::TPR_SHADOW) || !s.has_secondary(NEED)
    }),
    rule("x2APIC mode excludes APIC accesses", |s| !s.has_secondary(secondary::X2APIC_MODE) || !s.has_secondary(secondary::APIC_ACCESSES)),
    rule("interrupt delivery needs external-interrupt exiting", |s| {
        !s.has_secondary(secondary::INTERRUPT_DELIVERY) || s.has_pin(pin::EXTERNAL_INTERRUPTS)
    }),
    rule("posted interrupts need interrupt delivery", |s| {
        !s.has_pin(pin::POSTED_INTERRUPTS) || s.has_secondary(secondary::INTERRUPT_DELIVERY)
    }),
    rule("posted interrupts need acknowledgement at VM exits", |s| {
        !s.has_pin(pin::POSTED_INTERRUPTS) || s.has_exit(exit::ACKNOWLEDGE_INTERRUPT)
    }),
    rule("the posted-interrupt notification vector has 8 bits", |s| {
        !s.has_pin(pin::POSTED_INTERRUPTS) || s.get(Field::POSTED_INTERRUPT_VECTOR) <= 0xff
    }),
    rule("the posted-interrupt descriptor is aligned to 64 bytes", |s| {
        let address = s.get(Field::POSTED_INTERRUPTS);
        !s.has_pin(pin::POSTED_INTERRUPTS) || address.is_multiple_of(64) && s.is_physical(address)
    }),
    rule("VPID is not 0", |s| !s.has_secondary(secondary::VPID) || s.get(Field::VPID) != 0),
    rule("the EPT pointer is valid", |s| !s.has_secondary(secondary::EPT) || s.processor.accepts_ept_pointer(s.get(Field::EPT_POINTER))),
    rule("an unrestricted guest needs EPT", |s| !s.has_secondary(secondary::UNRESTRICTED_GUEST) || s.has_secondary(secondary::EPT)),
    rule("the VMREAD bitmap is a page", |s| !s.has_secondary(secondary::VMCS_SHADOWING) || s.is_page(Field::VMREAD_BITMAP)),
    rule("the VMWRITE bitmap is a page", |s| !s.has_secondary(secondary::VMCS_SHADOWING) || s.is_page(Field::VMWRITE_BITMAP)),
];

const TARGETS: &[Rule] = &[rule("there are at most 4 CR3-target values", |s| s.get(Field::CR3_TARGETS) <= misc::CR3_TARGETS >> 16)];

const THRESHOLD: &[Rule] = &[
    rule("the TPR threshold has 4 bits", |s| {
        !s.has_primary(primary::TPR_SHADOW) || s.has_secondary(secondary::INTERRUPT_DELIVERY) || s.get(Field::TPR_THRESHOLD) <= 0xf
    }),
    rule("the TPR threshold is at most the virtual TPR", |s| {
        const OTHERWISE: u32 = secondary::INTERRUPT_DELIVERY | secondary::APIC_ACCESSES;
        const TPR: u64 = 0x80;
        if !s.has_primary(primary::TPR_SHADOW) || s.has_secondary(OTHERWISE) {
            return true;
        }
        // A page outside memory reads as ones.
        let tpr = s.memory.read(s.get(Field::VIRTUAL_APIC) | TPR).unwrap_or(u64::MAX);
        s.get(Field::TPR_THRESHOLD) <= tpr >> 4 & 0xf
    }),
];

const EXIT: &[Rule] = &[
    rule("VM-exit controls have allowed settings", |s| s.processor.capabilities.exit.accepts(s.exit)),
    rule("saving the preemption timer needs the timer", |s| s.has_pin(pin::PREEMPTION_TIMER) || !s.has_exit(exit::SAVE_PREEMPTION_TIMER)),
    rule("the VM-exit MSR-store area is valid", |s| is_msr_area(s, Field::EXIT_MSR_STORES, Field::EXIT_MSR_STORE_AREA)),
    rule("the VM-exit MSR-load area is valid", |s| is_msr_area(s, Field::EXIT_MSR_LOADS, Field::EXIT_MSR_LOAD_AREA)),
];

const ENTRY: &[Rule] = &[
    rule("VM-entry controls have allowed settings", |s| s.processor.capabilities.entry.accepts(s.entry)),
    rule("the VM-entry MSR-load area is valid", |s| is_msr_area(s, Field::ENTRY_MSR_LOADS, Field::ENTRY_MSR_LOAD_AREA)),
];

const EVENT: &[Rule] = &[
    rule("the event's type exists", |s| {
        s.event().is_none_or(|event| match event.kind() {
            1 => false,
            Event::OTHER => s.processor.capabilities.primary.allows(primary::MONITOR_TRAP),
            _ => true,
        })
    }),
    rule("the event's vector fits its type", |s| {
        s.event().is_none_or(|event| match event.kind() {
            Event::NMI => event.vector() == 2,
            Event::HARDWARE_EXCEPTION => event.vector() <= 31,
            Event::OTHER => event.vector() == 0,
            _ => true,
        })
    }),
    rule("the event delivers an error code if its exception has one", |s| {
        s.event().is_none_or(|event| {
            const PE: u64 = 1 << 0;
            let is_protected = !s.has_secondary(secondary::UNRESTRICTED_GUEST) || s.get(Field::GUEST_CR0) & PE != 0;
            let is_exception = event.kind() == Event::HARDWARE_EXCEPTION;
            event.delivers_code() == (is_protected && is_exception && matches!(event.vector(), 8 | 10..=14 | 17))
        })
    }),
    rule("the event's reserved bits are 0", |s| s.event().is_none_or(|event| event.0 & 0x7fff_f000 == 0)),
    rule("the event's error code has 16 bits", |s| {
        s.event().is_none_or(|event| !event.delivers_code() || s.get(Field::ENTRY_ERROR_CODE) <= 0xffff)
    }),
    rule("the event's instruction length is valid", |s| {
        let least = if s.processor.capabilities.misc & misc::ZERO_LENGTH != 0 { 0 } else { 1 };
        s.event().is_none_or(|event| !event.is_software() || (least..=15).contains(&s.get(Field::ENTRY_LENGTH)))
    }),
];

/// Whether an area of this many MSRs begins at a multiple of 16 and ends within the physical address space.
fn is_msr_area(s: &State<'_>, count: Field, area: Field) -> bool {
    let (bytes, start) = (s.get(count) * 16, s.get(area));
    bytes == 0 || start.is_multiple_of(16) && s.is_physical(start) && start.checked_add(bytes - 1).is_some_and(|last| s.is_physical(last))
}
