//! VMCS02: the processor's VMCS for a VMCS12.

use stile_nested_vmx::virtual_apic::X2APIC_WORDS;

use crate::address_space;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vmx::exit;
use crate::arch::x86_64::vmx::extension;
use crate::arch::x86_64::vmx::host_state;
use crate::arch::x86_64::vmx::msr_bitmap::PASSED_WORDS;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use stile_paging::PAGE_SIZE;

/// No VMCS12: not the address of a page.
pub const NONE: u64 = u64::MAX;

/// The processor's VMCS for a VMCS12.
pub struct Vmcs02 {
    /// Physical addresses of the VMCS and its MSR bitmap.
    page: u64,
    pub bitmap: u64,
    /// Physical address of L1's MSR bitmap, if it uses one and that is in RAM.
    pub bitmap12: Option<u64>,
    /// Addresses of L1's pages that were translated last, or [`NONE`], and their physical addresses in RAM, which stays in place.
    pub pages12: [(u64, Option<u64>); PAGES],
    /// Address of the VMCS12, or [`NONE`].
    pub of: u64,
    /// Its MSR bitmap may let x2APIC registers through.
    pub opens_x2apic: bool,
    /// Words of L1's MSR bitmap with which this one's was merged, by their places in [`BITMAP_WORDS`]. `None`: it must be merged
    /// anew.
    pub merged: Option<[u64; BITMAP_WORDS.len()]>,
    /// Launched on its CPU.
    launched: bool,
    /// It may be active on a CPU.
    is_active: bool,
    /// CPU in its host state, plus 1.
    host: usize,
    /// Time of last use.
    pub used: u64,
    /// Values of the fields of [`COMPOSED`], if known.
    composed: [Option<u64>; COMPOSED.len()],
    /// The value of the VMX-preemption timer in it, if known.
    timer: Option<u32>,
    /// "Load" controls of entries by which each one writes a register: L1 does not load it at each, or save it at each exit.
    pub reloaded: u32,
    /// The inputs that the controls were composed of, if nothing has changed them since.
    pub composed_of: Option<OwnInputs>,
}

/// Words of MSR bitmaps that L1's decide on: [`PASSED_WORDS`] and [`X2APIC_WORDS`].
pub const BITMAP_WORDS: [usize; 15] = {
    let mut words = [0; 15];
    let mut at = 0;
    while at < words.len() {
        words[at] = if at < PASSED_WORDS.len() { PASSED_WORDS[at].0 } else { X2APIC_WORDS[at - PASSED_WORDS.len()] };
        at += 1;
    }
    assert!(words.len() == PASSED_WORDS.len() + X2APIC_WORDS.len());
    words
};

/// Values of Stile's that controls are composed of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnInputs {
    /// TSC offset of L1.
    pub offset: u64,
    /// [`Shadows::assignments`](stile_nested_vmx::shadow::Shadows::assignments).
    pub assignments: u64,
    /// [`Cpu::apic_page`].
    pub apic_page: u64,
}

/// Number of L1's pages that the processor or Stile uses by their physical addresses.
const PAGES: usize = 3;

/// Fields composed of L1's and Stile's values, written when a value changes.
const COMPOSED: [Field; 10] = [
    Field::PIN_CONTROLS,
    Field::PRIMARY_CONTROLS,
    Field::SECONDARY_CONTROLS,
    Field::ENTRY_CONTROLS,
    Field::EXCEPTION_BITMAP,
    Field::TSC_OFFSET,
    Field::EPT_POINTER,
    Field::CR0_MASK,
    Field::VIRTUAL_APIC,
    Field::APIC_ACCESS,
];

/// Position in [`COMPOSED`], which the compiler knows where the field is constant.
#[inline(always)]
const fn place(field: Field) -> Option<usize> {
    let mut at = 0;
    while at < COMPOSED.len() {
        if COMPOSED[at].0 == field.0 {
            return Some(at);
        }
        at += 1;
    }
    None
}

impl Vmcs02 {
    /// Size of its memory, in bytes.
    pub const MEMORY: u64 = 2 * PAGE_SIZE;

    /// Creates it in new memory, for no VMCS12.
    pub fn new(page: u64) -> Vmcs02 {
        let bitmap = page + PAGE_SIZE;
        // SAFETY: the page is new, so that nothing else refers to it.
        unsafe { address_space::physical(bitmap).write_bytes(0xff, PAGE_SIZE as usize) };
        extension::write_revision(page, extension::features().revision);
        Vmcs02 {
            page,
            bitmap,
            bitmap12: None,
            pages12: [(NONE, None); PAGES],
            of: NONE,
            opens_x2apic: false,
            merged: None,
            launched: false,
            is_active: false,
            host: 0,
            used: 0,
            composed: [None; COMPOSED.len()],
            timer: None,
            reloaded: 0,
            composed_of: None,
        }
    }

    /// Clears it (VMCLEAR) on this CPU.
    pub fn clear(&mut self) {
        if self.is_active {
            vmcs::clear(&self.page);
            self.is_active = false;
            self.launched = false;
        }
    }

    /// Dissociates it from its VMCS12. It is on no CPU.
    pub fn forget(&mut self) {
        self.of = NONE;
        self.host = 0;
        self.merged = None;
        // The RAM of a VM that is reset is filled again.
        self.pages12 = [(NONE, None); PAGES];
    }

    /// Marks the TSC offset as possibly changed.
    pub fn forget_offset(&mut self) {
        self.note(Field::TSC_OFFSET, None);
    }

    /// Whether the next entry is by VMRESUME.
    pub fn is_launched(&self) -> bool {
        self.launched
    }

    /// Whether the next entry is by VMLAUNCH, and marks it as launched.
    pub fn launch(&mut self) -> bool {
        !core::mem::replace(&mut self.launched, true)
    }

    /// Records the VM-entry controls that an exit has stored.
    pub fn note_entry_controls(&mut self, controls: u64) {
        self.note(Field::ENTRY_CONTROLS, Some(controls));
    }

    /// Records the value of a composed field.
    #[inline(always)]
    fn note(&mut self, field: Field, value: Option<u64>) {
        if let Some(known) = place(field).and_then(|at| self.composed.get_mut(at)) {
            *known = value;
        }
    }

    /// Makes it current on this CPU.
    #[inline(always)]
    pub fn make_current(&mut self, cpu: &Cpu, vpid: u16) {
        if self.is_active && self.host == cpu.index + 1 {
            vmcs::make_current(&self.page);
        } else {
            self.activate(cpu, vpid);
        }
    }

    #[cold]
    fn activate(&mut self, cpu: &Cpu, vpid: u16) {
        if !self.is_active && self.host == 0 {
            vmcs::clear(&self.page);
        }
        vmcs::make_current(&self.page);
        self.is_active = true;
        if self.host != cpu.index + 1 {
            let is_new = self.host == 0;
            self.host = cpu.index + 1;
            host_state::write(cpu);
            vmcs::write(Field::HOST_RIP, exit::entry_point_of_l2());
            if is_new {
                self.write_constants(vpid);
            }
        }
    }

    fn write_constants(&mut self, vpid: u16) {
        self.composed = [None; COMPOSED.len()];
        self.composed_of = None;
        self.timer = None;
        let fields = [
            (Field::EXIT_CONTROLS, extension::features().exit.into()),
            (Field::VPID, vpid.into()),
            (Field::MSR_BITMAP, self.bitmap),
            (Field::EXIT_MSR_STORES, 0),
            (Field::EXIT_MSR_LOADS, 0),
            (Field::ENTRY_MSR_LOADS, 0),
            (Field::ENTRY_INTERRUPTION, 0),
            (Field::VMCS_LINK, u64::MAX),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }

    /// Writes a composed field of this VMCS, which is current, if its value changed.
    #[inline(always)]
    pub fn compose(&mut self, field: Field, value: u64) {
        let Some(known) = place(field).and_then(|at| self.composed.get_mut(at)) else {
            return vmcs::write(field, value);
        };
        if *known != Some(value) {
            *known = Some(value);
            self.composed_of = None;
            vmcs::write(field, value);
        }
    }

    /// Sets the VMX-preemption timer of this VMCS, which is current: exits leave the field as it is.
    #[inline]
    pub fn set_timer(&mut self, value: u32) {
        if self.timer != Some(value) {
            self.timer = Some(value);
            vmcs::write(Field::PREEMPTION_TIMER, value.into());
        }
    }
}
