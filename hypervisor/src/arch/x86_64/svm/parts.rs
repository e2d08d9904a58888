//! Allocation of what the control structures of a VM's vCPUs have in common.

use stile_blob::{IpiAccess, Techniques};
use stile_paging::PAGE_SIZE;
use stile_paging::table::PageTable;
use stile_svm::{IO_MAP_SIZE, MSR_MAP_SIZE, msr_bits};

use super::descriptors::Direct;
use super::place::Place;
use super::second_stage::Format;
use super::virtual_apic;
use crate::address_space;
use crate::arch::x86_64::host::instructions::msr;
use crate::arena::Arena;
use crate::console::log;

/// MSRs that guests read and write without an exit: the VMCB, or load and put, give each its own. EFER is not among
/// them, since guests must not see its bit SVME.
const PASSED: [u32; 11] = [
    msr::STAR,
    msr::LSTAR,
    msr::CSTAR,
    msr::FMASK,
    msr::FS_BASE,
    msr::GS_BASE,
    msr::KERNEL_GS_BASE,
    msr::TSC_AUX,
    msr::SYSENTER_CS,
    msr::SYSENTER_ESP,
    msr::SYSENTER_EIP,
];

/// A permission map with which all accesses exit.
fn closed_map(size: u64, arena: &Arena) -> Result<u64, &'static str> {
    let pages = arena.allocate_pages(size)?;
    // SAFETY: the pages were just allocated, so that nothing else refers to them.
    unsafe { address_space::physical(pages).write_bytes(0xff, size as usize) };
    Ok(pages)
}

fn msr_map(arena: &Arena) -> Result<u64, &'static str> {
    let map = closed_map(MSR_MAP_SIZE, arena)?;
    // SAFETY: the pages were just allocated, so that nothing else refers to them.
    let bytes = unsafe { core::slice::from_raw_parts_mut(address_space::physical(map), MSR_MAP_SIZE as usize) };
    for (byte, read, write) in PASSED.into_iter().filter_map(msr_bits) {
        bytes[byte] &= !(read | write);
    }
    if let Some((byte, read, _)) = msr_bits(msr::TSC) {
        bytes[byte] &= !read;
    }
    Ok(map)
}

/// Allocates the permission maps of a VM with this second stage. Direct IPIs need posted interrupts.
///
/// # Errors
/// A description: no memory is left.
pub fn make(
    table: &mut PageTable<Format>,
    techniques: Techniques,
    _vcpus: usize,
    arena: &'static Arena,
) -> Result<(Place, Option<Direct>), &'static str> {
    virtual_apic::choose(techniques.apic_virtualization);
    if techniques.ipi != IpiAccess::Trapped {
        log!("no direct interprocessor interrupts: AMD-V has no posted interrupts");
    }
    let (io_map, msr_map) = (closed_map(IO_MAP_SIZE, arena)?, msr_map(arena)?);
    const _: () = assert!(IO_MAP_SIZE.is_multiple_of(PAGE_SIZE) && MSR_MAP_SIZE.is_multiple_of(PAGE_SIZE));
    Ok((Place { root: table.root(), io_map, msr_map }, None))
}
