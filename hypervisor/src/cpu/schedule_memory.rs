//! Memory of the schedule. Addresses are reserved for the largest machine; pages are allocated for the CPUs that there are,
//! and for vCPUs as they are created, in the memory of the nodes of those that use them. So an access takes no more
//! instructions than to a variable.
//!
//! An access to anything else of the schedule faults: none is made to CPUs beyond those of the machine, nor to vCPUs that
//! were not created (`stile_sched::memory`).

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_paging::PAGE_SIZE;
use stile_sched::memory::{self, Part};
use stile_sched::{CpuId, Scheduler};

use crate::nodes::Near;
use crate::{address_space, nodes};

unsafe extern "C" {
    // From the linker script: an address, and no memory.
    #[expect(improper_ctypes, reason = "nothing but Rust accesses it")]
    static __schedule: Scheduler;
}

/// Bytes that were mapped for VMs.
static OF_VMS: AtomicU64 = AtomicU64::new(0);

/// The schedule at its reserved addresses.
pub struct Reserved;

impl Deref for Reserved {
    type Target = Scheduler;

    #[inline(always)]
    fn deref(&self) -> &Scheduler {
        // SAFETY: the addresses are the schedule's alone, and suit its alignment. What is accessed of it was mapped before, by the functions
        // below, as zeros: a scheduler's initial value. The rest is mapped for nothing else.
        unsafe { &__schedule }
    }
}

/// Maps what all CPUs use. Called once, by the boot CPU, before it comes online.
///
/// # Errors
/// A description: no memory is left.
pub fn setup(cpus: usize) -> Result<(), &'static str> {
    let cpus = cpus.min(stile_sched::CPUS);
    address_space::reserve_pages(&raw const __schedule as u64, size_of::<Scheduler>() as u64)?;
    map(&memory::of_machine(cpus), &Near::new(), |_| {})?;
    Reserved.setup(cpus);
    Ok(())
}

/// Maps a CPU's queue, if possible near to the CPU, before it comes online.
///
/// # Errors
/// A description: no memory is left.
pub fn add_cpu(cpu: CpuId) -> Result<(), &'static str> {
    map(&[memory::of_cpu(cpu)], &nodes::near(&cpu.into()), |_| {})
}

/// Maps memory for the vCPUs of a VM, if possible `near`, unless an earlier VM of this number had as many. It is kept for
/// the next one.
///
/// # Errors
/// A description: no memory is left.
pub fn add_vm(vm: u8, vcpus: usize, near: &Near) -> Result<(), &'static str> {
    let parts = memory::of_vm(vm, vcpus).ok_or("more VMs or vCPUs than Stile supports")?;
    map(&parts, near, |added| _ = OF_VMS.fetch_add(added, Ordering::Relaxed))
}

/// Bytes that VMs have or had.
pub fn of_vms() -> u64 {
    OF_VMS.load(Ordering::Relaxed)
}

/// Maps what is not mapped yet, and passes the size of each page that was added to `count`.
fn map(parts: &[Part], near: &Near, count: impl Fn(u64)) -> Result<(), &'static str> {
    let base = &raw const __schedule as usize;
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let first = (base + part.start) as u64 & !(PAGE_SIZE - 1);
        for page in (first..(base + part.end) as u64).step_by(PAGE_SIZE as usize) {
            if address_space::add_page(page, near)? {
                count(PAGE_SIZE);
            }
        }
    }
    Ok(())
}
