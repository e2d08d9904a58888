//! Second stages of CPUs: format, VMIDs, and the current one.

use stile_board::MAX_CPUS;
use stile_lock::TicketLock;
use stile_paging::registers::{PaRange, vtcr_el2, vttbr_el2};
use stile_paging::table::Geometry;
use stile_paging::vmid::{VmidBits, VmidPool, VmidSlot, Vmids};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::memory;
use crate::once::Once;

/// Width of guest-physical addresses: RAM ends at 256 GiB.
const IPA_BITS: u8 = 39;

static VMIDS: Vmids<MAX_CPUS> = Vmids::new();
static VMID_POOL: TicketLock<Option<VmidPool<MAX_CPUS>>> = TicketLock::new(None);
static GEOMETRY: Once<Geometry> = Once::new();
/// VTTBR_EL2 without a VM: VMID 0, and an empty table.
static NO_ROOT: Once<u64> = Once::new();

/// Selects the format of second-stage tables and VMIDs, on the boot CPU.
///
/// # Errors
/// A description: no memory is left.
pub fn setup() -> Result<(), &'static str> {
    let pa_range = PaRange::from_mmfr0(read_sysreg!(ID_AA64MMFR0_EL1));
    GEOMETRY.set(Geometry::stage2(IPA_BITS.min(pa_range.bits()), pa_range).expect("32 to 39 bits is a size that there is"));
    NO_ROOT.set(memory::allocate_pages(stile_paging::PAGE_SIZE)?);
    *VMID_POOL.lock() = Some(VmidPool::new(vmid_bits()));
    Ok(())
}

/// The most CPUs that may use second stages.
pub fn most_cpus() -> usize {
    vmid_bits().cpus()
}

fn vmid_bits() -> VmidBits {
    if features::get().vmid16 { VmidBits::Sixteen } else { VmidBits::Eight }
}

/// Loads VMID 0, whose second stage is empty.
pub fn leave() {
    write_sysreg!(VTTBR_EL2, *NO_ROOT.get());
    isb();
}

/// Unloads the last vCPU's second stage, whose tables may be freed soon, from a CPU with no vCPU loaded. Its VMID is
/// not reused before all TLBs are invalidated (crate `paging`).
pub fn forget(cpu: usize) {
    leave();
    VMIDS.put(cpu);
}

/// Sets the second stage's format on this CPU.
pub fn setup_cpu() {
    write_sysreg!(VTCR_EL2, vtcr_el2(GEOMETRY.get(), vmid_bits()));
    leave();
    // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
    // its tables again. Firmware's entries must not be used for a VM.
    unsafe { core::arch::asm!("tlbi alle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}

/// Loads a table with its VMID on this CPU.
pub fn load_table(slot: &VmidSlot, root: u64, cpu: usize) {
    // Until the new VMID is in force, this CPU must allocate no TLB entries for the old one, which another VM may
    // have by then.
    write_sysreg!(VTTBR_EL2, *NO_ROOT.get());
    isb();
    let vmid = VMIDS.try_load(cpu, slot).unwrap_or_else(|| {
        let mut pool = VMID_POOL.lock();
        VMIDS.load(pool.as_mut().expect("set up"), cpu, slot, || {
            // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
            // its tables again.
            unsafe { core::arch::asm!("dsb ishst", "tlbi alle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
        })
    });
    write_sysreg!(VTTBR_EL2, vttbr_el2(root, vmid));
}

/// Format of second-stage tables.
pub fn geometry() -> Geometry {
    *GEOMETRY.get()
}

/// VMID of `slot` if this CPU, whose VTTBR_EL2 has the VM's table, has it in force and may keep it.
pub fn kept_vmid(cpu: usize, slot: &VmidSlot) -> Option<u16> {
    VMIDS.kept(cpu, slot)
}
