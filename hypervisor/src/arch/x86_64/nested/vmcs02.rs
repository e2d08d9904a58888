//! VMCS02: the processor's VMCS for one of L1's.

use crate::address_space;
use crate::arch::x86_64::exit;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;
use crate::arch::x86_64::vcpu::host_state;
use stile_paging::PAGE_SIZE;

/// No VMCS of L1's, and in general no address of a page.
pub const NONE: u64 = u64::MAX;

/// Fields that are composed of L1's and Stile's: each is written when its value changes.
#[derive(Clone, Copy)]
pub struct Composed {
    field: Field,
    value: Option<u64>,
}

/// The processor's VMCS for one of L1's.
pub struct Vmcs02 {
    /// Physical addresses: the VMCS's and its MSR bitmap's.
    page: u64,
    pub bitmap: u64,
    /// The address of L1's VMCS, or [`NONE`].
    pub of: u64,
    /// It was launched on the CPU that it is on.
    launched: bool,
    /// It may be in a CPU.
    is_active: bool,
    /// The CPU whose host state it has, counted from 1.
    host: usize,
    /// When it was last used.
    pub used: u64,
    composed: [Composed; COMPOSED.len()],
}

const COMPOSED: [Field; 8] = [
    Field::PIN_CONTROLS,
    Field::PRIMARY_CONTROLS,
    Field::SECONDARY_CONTROLS,
    Field::ENTRY_CONTROLS,
    Field::EXCEPTION_BITMAP,
    Field::TSC_OFFSET,
    Field::EPT_POINTER,
    Field::CR0_MASK,
];

impl Vmcs02 {
    /// Bytes of memory that it needs.
    pub const MEMORY: u64 = 2 * PAGE_SIZE;

    /// Of no VMCS of L1's, in new memory.
    pub fn new(page: u64) -> Vmcs02 {
        let bitmap = page + PAGE_SIZE;
        // SAFETY: the page is new, and nobody else's.
        unsafe { address_space::physical(bitmap).write_bytes(0xff, PAGE_SIZE as usize) };
        vmx::write_revision(page, vmx::features().revision);
        Vmcs02 {
            page,
            bitmap,
            of: NONE,
            launched: false,
            is_active: false,
            host: 0,
            used: 0,
            composed: COMPOSED.map(|field| Composed { field, value: None }),
        }
    }

    /// Takes it off this CPU.
    pub fn clear(&mut self) {
        if self.is_active {
            vmcs::clear(self.page);
            self.is_active = false;
            self.launched = false;
        }
    }

    /// It is on no CPU, and becomes that of no VMCS of L1's.
    pub fn forget(&mut self) {
        self.of = NONE;
        self.host = 0;
    }

    /// The counter's offset may be another one than L1's VMCS and the last entry say.
    pub fn forget_offset(&mut self) {
        self.composed.iter_mut().filter(|composed| composed.field == Field::TSC_OFFSET).for_each(|composed| composed.value = None);
    }

    /// Whether the next entry is by VMRESUME.
    pub fn is_launched(&self) -> bool {
        self.launched
    }

    /// Whether the next entry is by VMLAUNCH, of which is noted that it was done.
    pub fn launch(&mut self) -> bool {
        !core::mem::replace(&mut self.launched, true)
    }

    /// An exit has stored these VM-entry controls.
    pub fn note_entry_controls(&mut self, controls: u64) {
        self.composed
            .iter_mut()
            .filter(|composed| composed.field == Field::ENTRY_CONTROLS)
            .for_each(|composed| composed.value = Some(controls));
    }

    /// Makes it current on this CPU.
    pub fn make_current(&mut self, cpu: &Cpu, vpid: u16) {
        if !self.is_active && self.host == 0 {
            vmcs::clear(self.page);
        }
        vmcs::make_current(self.page);
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
        self.composed.iter_mut().for_each(|composed| composed.value = None);
        let fields = [
            (Field::EXIT_CONTROLS, vmx::features().exit.into()),
            (Field::VPID, vpid.into()),
            (Field::MSR_BITMAP, self.bitmap),
            (Field::EXIT_MSR_STORES, 0),
            (Field::EXIT_MSR_LOADS, 0),
            (Field::ENTRY_MSR_LOADS, 0),
            (Field::ENTRY_INTERRUPTION, 0),
            (Field::VMCS_LINK, u64::MAX),
            (Field::TPR_THRESHOLD, 0),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }

    /// Writes a composed field of this VMCS, which is current, if its value changed.
    #[inline]
    pub fn compose(&mut self, field: Field, value: u64) {
        let Some(composed) = self.composed.iter_mut().find(|composed| composed.field == field) else {
            return vmcs::write(field, value);
        };
        if composed.value != Some(value) {
            composed.value = Some(value);
            vmcs::write(field, value);
        }
    }
}
