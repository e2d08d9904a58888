//! Shadow VMCS of a vCPU, in which L1 reads and writes fields of its current VMCS without exits (crate `nested-vmx`,
//! `shadowed`).

use stile_nested_vmx::shadowed::{self, ALL, COUNT, READ, WRITTEN};
use stile_nested_vmx::vmcs12::SHADOW;
use stile_nested_vmx::{Field, FieldSet, Vmcs12};
use stile_paging::PAGE_SIZE;

use super::vmcs02::NONE;
use crate::address_space;
use crate::arch::x86_64::host::vmcs;
use crate::arch::x86_64::host::vmx::{self, secondary};

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
        let features = vmx::features();
        if !features.shadowing {
            return None;
        }
        let (reads, writes) = (page + PAGE_SIZE, page + 2 * PAGE_SIZE);
        vmx::write_revision(page, features.revision | SHADOW as u32);
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
            vmcs::clear(self.page);
        }
        vmcs::make_current(self.page);
        let is_new = self.values.is_none();
        let values = self.values.get_or_insert([0; COUNT]);
        for (value, (field, slot)) in values.iter_mut().zip(shadowed::ALL) {
            let new = vmcs12.get_slot(slot);
            if is_new || *value != new {
                *value = new;
                vmcs::write(field, new);
            }
        }
        vmcs::clear(self.page);
    }

    /// Copies L1's writes to VMCS12. No VMCS is current afterwards.
    pub fn collect(&mut self, vmcs12: &mut Vmcs12) {
        let Some(values) = &mut self.values else { return };
        vmcs::make_current(self.page);
        collect::<0>(values, vmcs12);
        collect::<1>(values, vmcs12);
        collect::<2>(values, vmcs12);
        collect::<3>(values, vmcs12);
        collect::<4>(values, vmcs12);
        collect::<5>(values, vmcs12);
        collect::<6>(values, vmcs12);
        collect::<7>(values, vmcs12);
        if self.delivers {
            collect::<8>(values, vmcs12);
        }
        const { assert!(WRITTEN.len() == 9 && matches!(WRITTEN[8], Field::GUEST_INTERRUPT_STATUS)) };
        vmcs::clear(self.page);
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
            vmcs::clear(self.page);
        }
    }
}

/// Copies a field that L1 writes, by its number: the compiler knows where it is. The shadow VMCS is current.
#[inline(always)]
fn collect<const NUMBER: usize>(values: &mut [u64; COUNT], vmcs12: &mut Vmcs12) {
    let at = const { READ.len() + NUMBER };
    let (field, slot) = const { ALL[READ.len() + NUMBER] };
    let new = vmcs::read(field);
    if values[at] != new {
        values[at] = new;
        vmcs12.set_slot(slot, new);
    }
}
