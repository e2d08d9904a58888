//! Second stages on a CPU: their shape, their VMIDs, and which one is there.

use stile_board::MAX_CPUS;
use stile_paging::registers::{PaRange, vtcr_el2, vttbr_el2};
use stile_paging::table::Geometry;
use stile_paging::vmid::{VmidBits, VmidPool, VmidSlot, Vmids};
use stile_sched::lock::TicketLock;

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::memory;
use crate::once::Once;

/// Bits of guest-physical address: RAM ends at 256 GiB.
const IPA_BITS: u8 = 39;

static VMIDS: Vmids<MAX_CPUS> = Vmids::new();
static VMID_POOL: TicketLock<Option<VmidPool<MAX_CPUS>>> = TicketLock::new(None);
static GEOMETRY: Once<Geometry> = Once::new();
/// VTTBR_EL2 while no VM's second stage is wanted: VMID 0, and a table in which nothing is mapped.
static NO_ROOT: Once<u64> = Once::new();

/// Chooses the shape of second-stage tables and VMIDs, on the first CPU.
///
/// # Errors
/// In words: there is no memory.
pub fn setup() -> Result<(), &'static str> {
    let pa_range = PaRange::from_mmfr0(read_sysreg!(ID_AA64MMFR0_EL1));
    GEOMETRY.set(Geometry::stage2(IPA_BITS.min(pa_range.bits()), pa_range).expect("32 to 39 bits is a size that there is"));
    NO_ROOT.set(memory::allocate_pages(stile_paging::PAGE_SIZE)?);
    *VMID_POOL.lock() = Some(VmidPool::new(vmid_bits()));
    Ok(())
}

fn vmid_bits() -> VmidBits {
    if features::get().vmid16 { VmidBits::Sixteen } else { VmidBits::Eight }
}

/// Makes VMID 0 the current one, whose second stage has nothing mapped.
pub fn leave() {
    write_sysreg!(VTTBR_EL2, *NO_ROOT.get());
    isb();
}

/// This CPU has no vCPU loaded: takes the last one's second stage off it, whose tables may be gone soon. Its VMID is given to nobody before all TLBs
/// are invalidated (crate `paging`).
pub fn forget(cpu: usize) {
    leave();
    VMIDS.put(cpu);
}

/// Sets the second stage's shape on this CPU.
pub fn setup_cpu() {
    write_sysreg!(VTCR_EL2, vtcr_el2(GEOMETRY.get(), vmid_bits()));
    leave();
    // SAFETY: forgetting translations is always right. What firmware left must not be taken for a VM's.
    unsafe { core::arch::asm!("tlbi alle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}

/// Puts a table with its VMID onto this CPU.
pub fn load_table(slot: &VmidSlot, root: u64, cpu: usize) {
    // Until the new VMID is in force, this CPU must make no entries for the old one, which may be another VM's by then.
    write_sysreg!(VTTBR_EL2, *NO_ROOT.get());
    isb();
    let vmid = VMIDS.try_load(cpu, slot).unwrap_or_else(|| {
        let mut pool = VMID_POOL.lock();
        VMIDS.load(pool.as_mut().expect("set up"), cpu, slot, || {
            // SAFETY: forgetting translations is always right.
            unsafe { core::arch::asm!("dsb ishst", "tlbi alle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        })
    });
    write_sysreg!(VTTBR_EL2, vttbr_el2(root, vmid));
}

/// The shape of second-stage tables.
pub fn geometry() -> Geometry {
    *GEOMETRY.get()
}

/// The VMID of `slot` on this CPU, if that is in force and stays so.
pub fn vmid(cpu: usize, slot: &VmidSlot) -> Option<u16> {
    VMIDS.try_load(cpu, slot)
}
