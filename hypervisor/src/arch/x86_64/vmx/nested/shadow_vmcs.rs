//! Shadow VMCS of a vCPU, in which L1 reads and writes fields of its current VMCS without exits (crate `nested-vmx`,
//! `shadowed`).

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
    /// Values of the fields of [`shadowed::ALL`]; unknown before it is first filled.
    values: Option<[u64; COUNT]>,
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
            let bytes = unsafe { core::slice::from_raw_parts_mut(address_space::physical(bitmap), PAGE_SIZE as usize) };
            bytes.fill(0xff);
            shadowed::open(bytes, shadowed::existing(&WRITTEN, existing));
            if is_of_reads {
                shadowed::open(bytes, shadowed::existing(&READ, existing));
            }
        }
        let delivers = shadowed::existing(&WRITTEN, existing).any(|field| field == Field::GUEST_INTERRUPT_STATUS);
        Some(ShadowVmcs { page, reads, writes, delivers, values: None })
    }

    /// Copies changed fields from VMCS12. No VMCS is current afterwards.
    pub fn fill(&mut self, vmcs12: &Vmcs12) {
        if self.values.is_none() {
            vmcs::clear(&self.page);
        }
        vmcs::make_current(&self.page);
        // Unknown contents differ from all values.
        let values = self.values.get_or_insert_with(|| ALL.map(|(_, slot)| !vmcs12.get_slot(slot)));
        each_field!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16, fill, values, vmcs12);
        const { assert!(COUNT == 17) };
        vmcs::clear(&self.page);
    }

    /// [`fill`](Self::fill) after an exit, which stores none of host RSP, primary controls, and TPR threshold: since the last
    /// [`collect`](Self::collect) they are what they were.
    #[inline(always)]
    pub fn fill_at_exit(&mut self, vmcs12: &Vmcs12) {
        let Some(values) = &mut self.values else { return self.fill(vmcs12) };
        vmcs::make_current(&self.page);
        each_field!(0 1 2 3 4 5 6 7 8 9 10 12 14 16, fill, values, vmcs12);
        const { assert!(matches!([ALL[11].0, ALL[13].0, ALL[15].0], [Field::HOST_RSP, Field::PRIMARY_CONTROLS, Field::TPR_THRESHOLD])) };
        vmcs::clear(&self.page);
    }

    /// Copies L1's writes to VMCS12. The shadow VMCS is current afterwards, and [`put`](Self::put) precedes L1's next access unless
    /// [`fill`](Self::fill) does.
    #[inline(always)]
    pub fn collect(&mut self, vmcs12: &mut Vmcs12) {
        let Some(values) = &mut self.values else { return };
        vmcs::make_current(&self.page);
        each_field!(8 9 10 11 12 13 14 15, collect, values, vmcs12);
        if self.delivers {
            collect::<16>(values, vmcs12);
        }
        const { assert!(READ.len() == 8 && COUNT == 17 && matches!(WRITTEN[8], Field::GUEST_INTERRUPT_STATUS)) };
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

    /// Marks the contents unknown, after a reset: it is filled again.
    pub fn forget(&mut self) {
        self.values = None;
    }

    /// Clears it, when the vCPU is put.
    pub fn put(&self) {
        if self.values.is_some() {
            vmcs::clear(&self.page);
        }
    }
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
