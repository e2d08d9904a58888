//! Shadow VMCS of a vCPU, in which L1 reads and writes fields of its current VMCS without exits (crate `nested-vmx`,
//! `shadowed`).

use stile_nested_vmx::adopted::{Access, Adopted, MOST};
use stile_nested_vmx::shadowed::{self, ALL, COUNT, READ, WRITTEN};
use stile_nested_vmx::vmcs12::SHADOW;
use stile_nested_vmx::{Field, FieldSet, Vmcs12};
use stile_paging::PAGE_SIZE;

use super::vmcs02::NONE;
use crate::address_space;
use crate::arch::x86_64::vmx::extension::{self, secondary};
use crate::arch::x86_64::vmx::vmcs;

/// Calls a function for fields by their places in [`ALL`].
macro_rules! each_field {
    ($($at:literal)+, $copy:ident, $values:ident, $vmcs12:ident) => { $($copy::<$at>($values, $vmcs12);)+ };
}

/// A shadow VMCS and its contents.
pub struct ShadowVmcs {
    /// Physical addresses of the VMCS, and of the VMREAD and VMWRITE bitmaps.
    page: u64,
    reads: u64,
    writes: u64,
    /// Whether the guest interrupt status exists.
    delivers: bool,
    contents: Contents,
    /// Values of the fields of [`shadowed::ALL`].
    values: [u64; COUNT],
    /// Fields that this L1 accesses often, and others do not.
    pub adopted: Adopted,
    /// Values of the adopted fields, by position.
    adopted_values: [u64; MOST],
}

/// Knowledge of the contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// Nothing: it has not been filled.
    Unknown,
    /// All, without adopted fields: as one comparison tells.
    Plain,
    /// All, with adopted fields.
    Adopting,
}

impl ShadowVmcs {
    /// Size of its memory, in bytes.
    pub const MEMORY: u64 = 3 * PAGE_SIZE;

    /// Creates it in new memory, for an L1 that has these fields. `None` if the CPU lacks VMCS shadowing, or cannot write read-only fields.
    pub fn new(page: u64, existing: &FieldSet) -> Option<ShadowVmcs> {
        let features = extension::features();
        if !features.shadowing {
            return None;
        }
        let (reads, writes) = (page + PAGE_SIZE, page + 2 * PAGE_SIZE);
        extension::write_revision(page, features.revision | SHADOW as u32);
        for (bitmap, is_of_reads) in [(reads, true), (writes, false)] {
            // SAFETY: the page is new, so that nothing else refers to it.
            unsafe { address_space::physical(bitmap).write_bytes(0xff, PAGE_SIZE as usize) };
            set_exits(bitmap, shadowed::existing(&WRITTEN, existing), false);
            if is_of_reads {
                set_exits(bitmap, shadowed::existing(&READ, existing), false);
            }
        }
        let delivers = shadowed::existing(&WRITTEN, existing).any(|field| field == Field::GUEST_INTERRUPT_STATUS);
        let (values, adopted_values) = ([0; COUNT], [0; MOST]);
        Some(ShadowVmcs { page, reads, writes, delivers, contents: Contents::Unknown, values, adopted: Adopted::new(), adopted_values })
    }

    /// Whether [`fill_at_exit`](Self::fill_at_exit) can replace [`fill`](Self::fill).
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.contents == Contents::Plain
    }

    /// Copies changed fields from VMCS12, which has the values of adopted fields. No VMCS is current afterwards.
    pub fn fill(&mut self, vmcs12: &Vmcs12) {
        if self.contents == Contents::Unknown {
            vmcs::clear(&self.page);
            // Unknown contents differ from all values.
            self.values = ALL.map(|(_, slot)| !vmcs12.get_slot(slot));
            for (known, (_, slot, _)) in self.adopted_values.iter_mut().zip(self.adopted.fields()) {
                *known = !vmcs12.get_slot(slot);
            }
            self.contents = if self.adopted.is_empty() { Contents::Plain } else { Contents::Adopting };
        }
        vmcs::make_current(&self.page);
        let values = &mut self.values;
        each_field!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16, fill, values, vmcs12);
        const { assert!(COUNT == 17) };
        for (known, (field, slot, _)) in self.adopted_values.iter_mut().zip(self.adopted.fields()) {
            let new = vmcs12.get_slot(slot);
            if *known != new {
                *known = new;
                vmcs::write(field, new);
            }
        }
        vmcs::clear(&self.page);
    }

    /// [`fill`](Self::fill) after an exit, if it [is plain](Self::is_plain). An exit stores none of host RSP, primary controls, and TPR
    /// threshold: since the last [`collect`](Self::collect) they are what they were.
    #[inline(always)]
    pub fn fill_at_exit(&mut self, vmcs12: &Vmcs12) {
        let values = &mut self.values;
        vmcs::make_current(&self.page);
        each_field!(0 1 2 3 4 5 6 7 8 9 10 12 14 16, fill, values, vmcs12);
        const { assert!(matches!([ALL[11].0, ALL[13].0, ALL[15].0], [Field::HOST_RSP, Field::PRIMARY_CONTROLS, Field::TPR_THRESHOLD])) };
        vmcs::clear(&self.page);
    }

    /// Copies L1's writes to VMCS12. The shadow VMCS is current afterwards, and [`put`](Self::put) precedes L1's next access unless
    /// [`fill`](Self::fill) does.
    #[inline(always)]
    pub fn collect(&mut self, vmcs12: &mut Vmcs12) {
        if !self.is_plain() {
            return self.collect_adopted(vmcs12);
        }
        self.collect_shadowed(vmcs12);
    }

    #[inline(always)]
    fn collect_shadowed(&mut self, vmcs12: &mut Vmcs12) {
        let values = &mut self.values;
        vmcs::make_current(&self.page);
        each_field!(8 9 10 11 12 13 14 15, collect, values, vmcs12);
        if self.delivers {
            collect::<16>(values, vmcs12);
        }
        const { assert!(READ.len() == 8 && COUNT == 17 && matches!(WRITTEN[8], Field::GUEST_INTERRUPT_STATUS)) };
    }

    #[cold]
    fn collect_adopted(&mut self, vmcs12: &mut Vmcs12) {
        if self.contents == Contents::Unknown {
            return;
        }
        self.collect_shadowed(vmcs12);
        for (known, (field, slot, access)) in self.adopted_values.iter_mut().zip(self.adopted.fields()) {
            if access == Access::Write {
                let new = vmcs::read(field);
                if *known != new {
                    *known = new;
                    vmcs12.set_slot(slot, new);
                }
            }
        }
    }

    /// Adopts the fields that L1 has accessed often in this many entries of L2s. Returns whether there are new ones, which
    /// [`fill`](Self::fill) is to copy. L1's writes have been collected.
    pub fn adopt(&mut self, entries: u64) -> bool {
        if !self.adopted.adopt(entries) {
            return false;
        }
        self.set_exits_of_adopted(false);
        self.put();
        self.contents = Contents::Unknown;
        true
    }

    /// Enables or disables its use by the vCPU whose VMCS01 is current. Returns the secondary control for it.
    pub fn use_it(&self, on: bool) -> u64 {
        if on {
            vmcs::write(Field::VMREAD_BITMAP, self.reads);
            vmcs::write(Field::VMWRITE_BITMAP, self.writes);
        }
        vmcs::write(Field::VMCS_LINK, if on { self.page } else { NONE });
        let others = vmcs::read(Field::SECONDARY_CONTROLS) & !u64::from(secondary::VMCS_SHADOWING);
        let control = if on { secondary::VMCS_SHADOWING.into() } else { 0 };
        vmcs::write(Field::SECONDARY_CONTROLS, others | control);
        control
    }

    fn set_exits_of_adopted(&self, exits: bool) {
        let written = self.adopted.fields().filter(|(.., access)| *access == Access::Write);
        set_exits(self.reads, self.adopted.fields().map(|(field, ..)| field), exits);
        set_exits(self.writes, written.map(|(field, ..)| field), exits);
    }

    /// Forgets the contents, which are filled again, and which fields L1 accesses often, after a reset.
    pub fn forget(&mut self) {
        self.set_exits_of_adopted(true);
        self.adopted = Adopted::new();
        self.contents = Contents::Unknown;
    }

    /// Clears it, when the vCPU is put.
    pub fn put(&self) {
        if self.contents != Contents::Unknown {
            vmcs::clear(&self.page);
        }
    }
}

/// Lets accesses to fields exit, or not, in a vCPU's VMREAD or VMWRITE bitmap.
fn set_exits(bitmap: u64, fields: impl Iterator<Item = Field>, exits: bool) {
    // SAFETY: the bitmap is the vCPU's own, which is handled or new: no CPU reads it now, and nothing else refers to it.
    let bytes = unsafe { core::slice::from_raw_parts_mut(address_space::physical(bitmap), PAGE_SIZE as usize) };
    shadowed::set_exits(bytes, fields, exits);
}

/// Copies a changed field to the shadow VMCS, which is current, by its place in [`ALL`]: the compiler knows where it is.
#[inline(always)]
fn fill<const AT: usize>(values: &mut [u64; COUNT], vmcs12: &Vmcs12) {
    let (field, slot) = const { ALL[AT] };
    let new = vmcs12.get_slot(slot);
    if values[AT] != new {
        values[AT] = new;
        vmcs::write(field, new);
    }
}

/// Copies a field that L1 has changed from the shadow VMCS, which is current, by its place in [`ALL`].
#[inline(always)]
fn collect<const AT: usize>(values: &mut [u64; COUNT], vmcs12: &mut Vmcs12) {
    let (field, slot) = const { ALL[AT] };
    let new = vmcs::read(field);
    if values[AT] != new {
        values[AT] = new;
        vmcs12.set_slot(slot, new);
    }
}
