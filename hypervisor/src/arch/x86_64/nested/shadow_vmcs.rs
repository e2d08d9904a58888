//! The shadow VMCS of a vCPU: L1 reads and writes fields of its current VMCS there, without exits (crate `nested-vmx`, `shadowed`).

use stile_nested_vmx::shadowed::{self, COUNT, READ, WRITTEN};
use stile_nested_vmx::vmcs12::SHADOW;
use stile_nested_vmx::{Field, Vmcs12};
use stile_paging::PAGE_SIZE;

use super::vmcs02::NONE;
use crate::address_space;
use crate::arch::x86_64::host::vmcs;
use crate::arch::x86_64::host::vmx::{self, secondary};

/// A shadow VMCS, with what it contains.
pub struct ShadowVmcs {
    /// Physical addresses: the VMCS's, and those of the bitmaps of reads and writes that exit.
    page: u64,
    reads: u64,
    writes: u64,
    /// Values of the fields of [`shadowed::ALL`] there; all unknown before it is filled for the first time.
    values: Option<[u64; COUNT]>,
}

impl ShadowVmcs {
    /// Bytes of memory that it needs.
    pub const MEMORY: u64 = 3 * PAGE_SIZE;

    /// In new memory. `None` if the CPU has no VMCS shadowing, or none whose read-only fields can be filled.
    pub fn new(page: u64) -> Option<ShadowVmcs> {
        let features = vmx::features();
        if !features.shadowing {
            return None;
        }
        let (reads, writes) = (page + PAGE_SIZE, page + 2 * PAGE_SIZE);
        vmx::write_revision(page, features.revision | SHADOW as u32);
        for (bitmap, is_of_reads) in [(reads, true), (writes, false)] {
            // SAFETY: the page is new, and nobody else's.
            let bytes = unsafe { core::slice::from_raw_parts_mut(address_space::physical(bitmap), PAGE_SIZE as usize) };
            bytes.fill(0xff);
            shadowed::open(bytes, WRITTEN);
            if is_of_reads {
                shadowed::open(bytes, READ);
            }
        }
        Some(ShadowVmcs { page, reads, writes, values: None })
    }

    /// Fills it from L1's VMCS, as far as that has changed. No VMCS is current afterwards.
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

    /// Gives L1's VMCS what L1 has written here since. No VMCS is current afterwards.
    pub fn collect(&mut self, vmcs12: &mut Vmcs12) {
        let Some(values) = &mut self.values else { return };
        vmcs::make_current(self.page);
        for (value, field) in values[READ.len()..].iter_mut().zip(WRITTEN) {
            let new = vmcs::read(field);
            if *value != new {
                *value = new;
                vmcs12.set(field, new);
            }
        }
        vmcs::clear(self.page);
    }

    /// Has the vCPU whose VMCS01 is current use it, or not. Returns the secondary control for it.
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

    /// Forgets its contents, which are of before a reset, and perhaps L1's: it is filled again.
    pub fn forget(&mut self) {
        self.values = None;
    }

    /// The vCPU leaves this CPU.
    pub fn put(&self) {
        if self.values.is_some() {
            vmcs::clear(self.page);
        }
    }
}
