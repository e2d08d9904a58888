//! VMCS02 from VMCS12 and Stile's requirements. VMCS02 is current during calls.

use stile_nested_vmx::capability::offered;
use stile_nested_vmx::virtual_apic::{X2APIC_WORDS, x2apic_words};
use stile_nested_vmx::{Field, FieldSet, Group, Groups, Kind, fields};

use super::operand::Page;
use super::state::{GuestVmx, to_vmcs01};
use super::virtual_apic::BITMAP;
use super::vmcs02::{BITMAP_WORDS, OwnInputs};
use crate::arch::x86_64::host::cpu::{Cpu, NO_PAGE};
use crate::arch::x86_64::vcpu::cr0::{self, HELD};
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vcpu::inject::{self, NMI, NMI_BLOCKED, TYPE};
use crate::arch::x86_64::vmx::extension::{self, entry, exit, pin, primary, secondary};
use crate::arch::x86_64::vmx::msr_bitmap::PASSED_WORDS;
use crate::arch::x86_64::vmx::vmcs;

/// L1's registers that L2 inherits if L1 does not load others; zero if it does.
#[derive(Default)]
pub struct OfL1 {
    efer: u64,
    pat: u64,
    debugctl: u64,
    dr7: u64,
}

impl OfL1 {
    /// Reads those that L1's VM-entry controls do not load. VMCS01 is current.
    #[inline(always)]
    pub fn read(controls: u32) -> OfL1 {
        let mut l1 = OfL1::default();
        if controls & ALL_LOADED == ALL_LOADED {
            return l1;
        }
        if controls & entry::LOAD_EFER == 0 {
            l1.efer = vmcs::read(Field::GUEST_EFER);
        }
        if controls & entry::LOAD_PAT == 0 {
            l1.pat = vmcs::read(Field::GUEST_PAT);
        }
        if controls & entry::LOAD_DEBUG == 0 {
            l1.debugctl = vmcs::read(Field::GUEST_DEBUGCTL);
            l1.dr7 = vmcs::read(Field::GUEST_DR7);
        }
        l1
    }
}

/// Controls of entries that load registers.
const ALL_LOADED: u32 = entry::LOAD_EFER | entry::LOAD_PAT | entry::LOAD_DEBUG;

/// Pin-based controls copied from VMCS12 to VMCS02: Stile processes the interrupts posted for L2.
const PIN: u32 = offered::PIN & !pin::POSTED_INTERRUPTS;
/// Primary controls copied from VMCS12 to VMCS02: those offered, except those that Stile composes.
const PRIMARY: u32 =
    offered::PRIMARY & !(primary::TSC_OFFSET | primary::UNCONDITIONAL_IO | primary::IO_BITMAPS | primary::MSR_BITMAPS | primary::SECONDARY);
/// Secondary controls, likewise.
const SECONDARY: u32 = offered::SECONDARY & !(secondary::EPT | secondary::VPID);

/// Guest state and controls copied from VMCS12 to VMCS02.
static PLAIN: FieldSet = {
    let mut plain = FieldSet::EMPTY;
    let mut slot = 0;
    while slot < fields::COUNT {
        let row = &fields::FIELDS[slot];
        let composed = matches!(
            row.field,
            Field::GUEST_CR0
                | Field::GUEST_CR4
                | Field::GUEST_EFER
                | Field::GUEST_PAT
                | Field::GUEST_DEBUGCTL
                | Field::GUEST_DR7
                | Field::GUEST_SMBASE
                | Field::PREEMPTION_TIMER
                | Field::PAGE_MODIFICATION_LOG_INDEX
                | Field::VMCS_LINK
        );
        let control = matches!(
            row.field,
            Field::PAGE_FAULT_MASK
                | Field::PAGE_FAULT_MATCH
                | Field::CR3_TARGETS
                | Field::CR3_TARGET_0
                | Field::CR3_TARGET_1
                | Field::CR3_TARGET_2
                | Field::CR3_TARGET_3
                | Field::TPR_THRESHOLD
                | Field::EOI_EXIT_0
                | Field::EOI_EXIT_1
                | Field::EOI_EXIT_2
                | Field::EOI_EXIT_3
        );
        if control || matches!(row.field.kind(), Kind::Guest) && !composed {
            plain.add(slot);
        }
        slot += 1;
    }
    plain
};

/// IA32_DEBUGCTL.LBR: settable by guests, without effect.
pub const LBR: u64 = 1 << 0;

/// Inputs of composed control registers.
const CONTROL_REGISTERS: Groups = Groups::of(&[Group::Registers, Group::Masks]);
/// Fields that determine which registers an entry loads.
const LOADED: Groups = Groups::of(&[Group::Registers, Group::Entry, Group::Exit]);

/// Bits in which words of a page differ from older values, by their places in [`BITMAP_WORDS`], which are constant.
macro_rules! difference {
    ($page:ident, $old:ident: $($at:literal)+) => { 0 $(| $page.read(const { BITMAP_WORDS[$at] }) ^ $old[$at])+ };
}

/// L1's inputs of composed controls.
const COMPOSED: Groups = Groups::of(&[Group::Execution, Group::Entry]);

/// Inputs of the addresses of L1's pages.
const EXECUTION: Groups = Group::Execution.alone();

/// Whether Stile's EPT for L1 maps the page of L1's local APIC, whose accesses must exit in L2 as well.
#[cold]
fn has_apic_page(cpu: &Cpu) -> bool {
    cpu.vcpu().vm().arch.place.apic_access.is_some() && cpu.apic_page != NO_PAGE
}

/// Whether L1's pin-based controls give L2 no blocking of NMIs of its own: that of L1 stays while L2 runs.
#[inline(always)]
pub const fn has_physical_nmis(pin12: u32) -> bool {
    pin12 & (pin::NMIS | pin::VIRTUAL_NMIS) == pin::NMIS
}

impl GuestVmx {
    /// Whether NMIs of L1 are blocked while L2 runs, so that they do not exit. VMCS01 is current, before and after.
    #[cold]
    pub fn holds_nmis(&mut self, cpu: &mut Cpu) -> bool {
        if !has_physical_nmis(self.vmcs12.get32(Field::PIN_CONTROLS)) {
            return false;
        }
        self.enter_vmcs02(cpu);
        let is_injected = inject::is_nmi(vmcs::read(Field::ENTRY_INTERRUPTION));
        let is_blocked = vmcs::read(Field::GUEST_INTERRUPTIBILITY) & NMI_BLOCKED != 0;
        to_vmcs01(cpu);
        is_injected || is_blocked
    }

    /// L1's secondary controls, if activated.
    pub fn secondary12(&self) -> u32 {
        if self.primary12() & primary::SECONDARY != 0 { self.vmcs12.get32(Field::SECONDARY_CONTROLS) } else { 0 }
    }

    /// L1's primary controls.
    #[inline(always)]
    pub fn primary12(&self) -> u32 {
        self.vmcs12.get32(Field::PRIMARY_CONTROLS)
    }

    /// Writes the fields that changed since the last entry.
    pub fn write_changes(&mut self, cpu: &Cpu, l1: &OfL1) {
        let groups = self.vmcs12.changed_groups();
        self.vmcs12.take_changes().for_each_common(&PLAIN, |slot| {
            if let Some((field, value)) = self.vmcs12.by_slot(slot) {
                vmcs::write(field, value);
            }
        });
        self.write_controls(cpu, groups);
        if groups.intersects(EXECUTION) {
            self.find_msr_bitmap(cpu);
            self.write_apic_pages(cpu);
        }
        if groups.intersects(CONTROL_REGISTERS) {
            self.write_control_registers();
        }
        self.write_loaded(l1, groups.intersects(LOADED));
    }

    /// Composes the controls, if what they are composed of may have changed.
    #[inline(always)]
    pub fn write_controls(&mut self, cpu: &Cpu, changed: Groups) {
        let (offset, apic_page) = (cpu.vcpu().arch.msrs.tsc_offset(), cpu.apic_page);
        let own = OwnInputs { offset, apic_page, assignments: self.shadows.assignments() };
        if changed.intersects(COMPOSED) || self.vmcs02().composed_of != Some(own) {
            self.compose_controls(cpu);
            self.vmcs02().composed_of = Some(OwnInputs { assignments: self.shadows.assignments(), ..own });
        }
    }

    fn compose_controls(&mut self, cpu: &Cpu) {
        let (features, place) = (extension::features(), &cpu.vcpu().vm().arch.place);
        let (primary12, secondary12) = (self.primary12(), self.secondary12());
        let pin12 = self.vmcs12.get32(Field::PIN_CONTROLS) & PIN;
        // With exits by NMIs and without virtual NMIs, IRET of L2 does not end blocking by NMI ("Changes to Instruction Behavior in VMX
        // Non-Root Operation"). The processor then blocks physical NMIs, which Stile does not use.
        let pin = if has_physical_nmis(pin12) { features.pin & !pin::VIRTUAL_NMIS | pin12 } else { features.pin | pin12 };
        // CR8 is L1's, unless L2 has a virtual APIC.
        let cr8 = if primary12 & primary::TPR_SHADOW != 0 { primary::CR8_LOAD | primary::CR8_STORE } else { 0 };
        // Every port access exits; L1's bitmaps are checked then.
        let base = features.primary & !(primary::IO_BITMAPS | primary::MSR_BITMAPS | cr8) | primary::UNCONDITIONAL_IO | primary::HLT;
        let primary = base | primary12 & (PRIMARY | primary::MSR_BITMAPS);
        let apic_accesses = if !self.has_shadow() && has_apic_page(cpu) { secondary::APIC_ACCESSES } else { 0 };
        let own = features.secondary & (secondary::EPT | secondary::VPID | secondary::WBINVD) | apic_accesses;
        let secondary = own | secondary12 & SECONDARY;
        let entry = features.entry | self.vmcs12.get32(Field::ENTRY_CONTROLS) & entry::IA32E_GUEST;
        let exceptions = inject::INTERCEPTED | self.vmcs12.get(Field::EXCEPTION_BITMAP);
        let offset12 = if primary12 & primary::TSC_OFFSET != 0 { self.vmcs12.get(Field::TSC_OFFSET) } else { 0 };
        let offset = cpu.vcpu().arch.msrs.tsc_offset().wrapping_add(offset12);
        let ept = match self.has_shadow() {
            true if secondary12 & secondary::EPT != 0 => self.shadow_pointer(self.vmcs12.get(Field::EPT_POINTER)),
            true => self.identity_pointer(),
            false => place.ept,
        };
        let vmcs02 = self.vmcs02();
        vmcs02.compose(Field::PIN_CONTROLS, pin.into());
        vmcs02.compose(Field::PRIMARY_CONTROLS, primary.into());
        vmcs02.compose(Field::SECONDARY_CONTROLS, secondary.into());
        // An exit may have changed "IA-32e mode guest".
        vmcs02.compose(Field::ENTRY_CONTROLS, entry.into());
        vmcs02.compose(Field::EXCEPTION_BITMAP, exceptions);
        vmcs02.compose(Field::TSC_OFFSET, offset);
        vmcs02.compose(Field::EPT_POINTER, ept);
    }

    /// Composes control registers.
    fn write_control_registers(&self) {
        let get = |field| self.vmcs12.get(field);
        let fixed4 = extension::features().cr4.0;
        let (cr0, mask0) = (get(Field::GUEST_CR0), get(Field::CR0_MASK));
        let (cr4, mask4) = (get(Field::GUEST_CR4), get(Field::CR4_MASK));
        let fields = [
            // Caches stay enabled.
            (Field::GUEST_CR0, cr0 & !(HELD & !cr0::NE) | cr0::NE | cr0::ET),
            (Field::CR0_MASK, HELD | mask0),
            (Field::CR0_SHADOW, get(Field::CR0_SHADOW) & mask0 | cr0 & !mask0),
            (Field::GUEST_CR4, cr4 | fixed4),
            (Field::CR4_MASK, !CR4_OWNED | mask4),
            (Field::CR4_SHADOW, get(Field::CR4_SHADOW) & mask4 | cr4 & !mask4),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }

    /// Composes the registers that an entry loads if L1 requests it. `changed`: L1 may have written them. If L1 does
    /// not load one at each entry, or save it at each exit, the processor may have another value.
    #[inline(always)]
    fn write_loaded(&mut self, l1: &OfL1, changed: bool) {
        const LMA: u64 = 1 << 10;
        const LME: u64 = 1 << 8;
        let (entry, exit) = (self.vmcs12.get32(Field::ENTRY_CONTROLS), self.vmcs12.get32(Field::EXIT_CONTROLS));
        let loads = |control: u32| entry & control != 0;
        if changed {
            let reloaded = |load: u32, save: u32| if loads(load) && exit & save != 0 { 0 } else { load };
            let (efer, pat) = (reloaded(entry::LOAD_EFER, exit::SAVE_EFER), reloaded(entry::LOAD_PAT, exit::SAVE_PAT));
            self.vmcs02().reloaded = efer | pat | reloaded(entry::LOAD_DEBUG, exit::SAVE_DEBUG);
        }
        let reloaded = if changed { ALL_LOADED } else { self.vmcs02().reloaded };
        if reloaded & entry::LOAD_EFER != 0 {
            // Without "load IA32_EFER" an entry sets LMA from "IA-32e mode guest", and LME as well if CR0.PG is set.
            let long = if loads(entry::IA32E_GUEST) { LMA } else { 0 };
            let paging = long != 0 || vmcs::read(Field::GUEST_CR0) & cr0::PG != 0;
            let efer = match paging {
                _ if loads(entry::LOAD_EFER) => self.vmcs12.get(Field::GUEST_EFER),
                true => l1.efer & !(LMA | LME) | long | long >> 2,
                false => l1.efer & !LMA | long,
            };
            if changed || vmcs::read(Field::GUEST_EFER) != efer {
                if !loads(entry::LOAD_EFER) {
                    self.keep(exit::SAVE_EFER, &[Field::GUEST_EFER]);
                }
                vmcs::write(Field::GUEST_EFER, efer);
            }
        }
        if reloaded & entry::LOAD_PAT != 0 {
            let of_l2 = loads(entry::LOAD_PAT);
            if !of_l2 {
                self.keep(exit::SAVE_PAT, &[Field::GUEST_PAT]);
            }
            vmcs::write(Field::GUEST_PAT, if of_l2 { self.vmcs12.get(Field::GUEST_PAT) } else { l1.pat });
        }
        if reloaded & entry::LOAD_DEBUG != 0 {
            let of_l2 = loads(entry::LOAD_DEBUG);
            if !of_l2 {
                self.keep(exit::SAVE_DEBUG, &[Field::GUEST_DEBUGCTL, Field::GUEST_DR7]);
            }
            let get = |field| self.vmcs12.get(field);
            vmcs::write(Field::GUEST_DEBUGCTL, if of_l2 { get(Field::GUEST_DEBUGCTL) & !LBR } else { l1.debugctl });
            vmcs::write(Field::GUEST_DR7, if of_l2 { get(Field::GUEST_DR7) } else { l1.dr7 });
        }
    }

    /// Copies registers of L2 to VMCS12 that its last exit saved (control `save`) and only VMCS02 holds: L1's values are about to replace
    /// them there, and L1 reads L2's if the entry fails.
    #[cold]
    fn keep(&mut self, save: u32, fields: &[Field]) {
        if let Some(controls) = self.unsaved.filter(|controls| controls & save != 0) {
            fields.iter().for_each(|&field| self.vmcs12.set_from_exit(field, vmcs::read(field)));
            self.unsaved = Some(controls & !save);
        }
    }

    /// Permits an NMI that L1 injects without exits by NMIs while NMIs are blocked: in VMCS02 they are virtual, which excludes that ("Checks on
    /// Guest Non-Register State"). The injection blocks NMIs again.
    pub fn unblock_injected_nmi(&self, event: u64) {
        if event & TYPE == NMI && self.vmcs12.get32(Field::PIN_CONTROLS) & pin::NMIS == 0 {
            inject::unblock_nmis();
        }
    }

    /// Translates the address of L1's MSR bitmap. The next merging is a full one.
    fn find_msr_bitmap(&mut self, cpu: &Cpu) {
        let is_used = self.primary12() & primary::MSR_BITMAPS != 0;
        self.vmcs02().bitmap12 = if is_used { self.translate(cpu, BITMAP, self.vmcs12.get(Field::MSR_BITMAP)) } else { None };
        self.vmcs02().merged = None;
    }

    /// Merges L1's MSR bitmap into VMCS02's. Only words in which Stile passes MSRs through can differ from all ones:
    /// they are compared at each entry, so that writes of L1's page at any time, by any CPU or device, are covered.
    /// Returns whether anything changed.
    #[inline(always)]
    pub fn merge_msr_bitmap(&mut self) -> bool {
        if self.primary12() & primary::MSR_BITMAPS == 0 {
            return false;
        }
        let vmcs02 = self.vmcs02();
        if let (Some(page), Some(merged)) = (vmcs02.bitmap12, &vmcs02.merged) {
            let page = Page::in_machine(page);
            let mut differ = difference!(page, merged: 0 1 2 3 4 5 6 7 8 9);
            // Registers are reached only with the controls that virtualize them, which the entry has composed.
            if vmcs02.opens_x2apic {
                differ |= difference!(page, merged: 10 11 12 13 14);
            }
            if differ == 0 {
                return false;
            }
        }
        self.merge_fully()
    }

    #[cold]
    fn merge_fully(&mut self) -> bool {
        let secondary = self.secondary12();
        let vmcs02 = self.vmcs02();
        let page = vmcs02.bitmap12.map(Page::in_machine);
        let bitmap = crate::address_space::physical(vmcs02.bitmap).cast::<u64>();
        vmcs02.opens_x2apic = secondary & secondary::X2APIC_MODE != 0;
        let words = PASSED_WORDS.into_iter().chain(X2APIC_WORDS.into_iter().zip(x2apic_words(secondary)));
        let merged = vmcs02.merged.get_or_insert_default();
        let mut changed = false;
        for ((word, own), merged) in words.zip(merged) {
            // One reading: L1 may write the page meanwhile.
            *merged = page.map_or(u64::MAX, |page| page.read(word));
            // SAFETY: the page belongs to this VMCS02 alone, and the index is within it.
            unsafe {
                let place = bitmap.add(word);
                changed |= *place != *merged | own;
                *place = *merged | own;
            }
        }
        changed
    }
}
