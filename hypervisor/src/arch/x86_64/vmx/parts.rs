//! Allocation of what the control structures of a VM's vCPUs have in common.

use stile_blob::{ApicVirtualization, Techniques};
use stile_paging::PAGE_SIZE;
use stile_paging::table::PageTable;

use super::access_page::AccessPage;
use super::msr_bitmap::{msr_bitmap, msr_bitmaps};
use super::place::Place;
use super::second_stage::Format;
use crate::address_space;
use crate::arch::x86_64::vmx::descriptors::Direct;
use crate::arch::x86_64::vmx::extension;
use crate::arch::x86_64::vmx::virtual_apic;
use crate::arena::Arena;

/// I/O bitmaps: all ports exit.
fn io_bitmaps(arena: &Arena) -> Result<[u64; 2], &'static str> {
    let pages = arena.allocate_pages(2 * PAGE_SIZE)?;
    // SAFETY: the pages were just allocated, so that nothing else refers to them.
    unsafe { address_space::physical(pages).write_bytes(0xff, 2 * PAGE_SIZE as usize) };
    Ok([pages, pages + PAGE_SIZE])
}

/// Allocates the bitmaps and pages of a VM with this second stage, and the means of direct IPIs.
///
/// # Errors
/// A description: no memory is left.
pub fn make(
    table: &mut PageTable<Format>,
    techniques: Techniques,
    vcpus: usize,
    arena: &'static Arena,
) -> Result<(Place, Option<Direct>), &'static str> {
    let root = table.root();
    let level = virtual_apic::choose(techniques.apic_virtualization);
    let apic_access = match level {
        ApicVirtualization::Off => None,
        _ => Some(AccessPage::new(table, root, arena)?),
    };
    let ept = extension::ept_pointer(root);
    let direct = Direct::new(table, ept, techniques.ipi, level, vcpus, arena, |passes| msr_bitmap(level, passes, arena))?;
    let place = Place {
        ept,
        io_bitmaps: io_bitmaps(arena)?,
        msr_bitmaps: msr_bitmaps(ApicVirtualization::Off, arena)?,
        x2apic_bitmaps: msr_bitmaps(level, arena)?,
        apic_access,
    };
    Ok((place, direct))
}
