//! The processor's virtualization extension: detection, and the state of a CPU.

use stile_blob::ApicVirtualization;
use stile_board::footprint::{self, Footprint};
use stile_paging::PAGE_SIZE;
use stile_paging::table::Level;
use stile_svm::Asids;

use super::state;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{cpuid, msr, rdmsr, read_cr, wrmsr};
use crate::memory;
use crate::once::Once;

/// Mode of operation, for the operator.
pub const LEVEL: stile_wire::Level = stile_wire::Level::Svm;
/// Pages of each CPU: the host state that VMRUN saves, and the one that VMLOAD loads.
pub const CPU_PAGES: u64 = 2;
/// Whether VMs can own PCI functions.
pub const ASSIGNS_FUNCTIONS: bool = true;
/// Memory that the back end takes.
pub const FOOTPRINT: Footprint = footprint::X86_64_SVM;

/// Registers of AMD-V.
const VM_CR: u32 = 0xc001_0114;
const VM_HSAVE_PA: u32 = 0xc001_0117;
/// CPUID leaf of AMD-V.
const LEAF: u32 = 0x8000_000a;

/// Features of AMD-V. CPUs that differ from the boot CPU are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Level of the largest pages of second stages.
    pub largest_page: Level,
    /// Address-space identifiers, including Stile's.
    pub asids: u32,
    /// Whether exits save the next RIP.
    pub next_rip: bool,
    /// Whether PAUSE loops can exit.
    pub pause_loops: bool,
    /// APIC virtualization: none.
    pub apic: ApicVirtualization,
}

static FEATURES: Once<Features> = Once::new();

/// Returns the boot CPU's features.
pub fn features() -> &'static Features {
    FEATURES.get()
}

/// Publishes the boot CPU's features.
pub fn set_features(features: Features) {
    FEATURES.set(features);
}

/// Detects the features of this CPU ("Determining Support for SVM").
///
/// # Errors
/// A description of the missing feature.
pub fn detect() -> Result<Features, &'static str> {
    const SVM: u32 = 1 << 2;
    const NESTED_PAGING: u32 = 1 << 0;
    const NEXT_RIP: u32 = 1 << 3;
    const PAUSE_FILTER: u32 = 1 << 10;
    const X2APIC: u32 = 1 << 21;
    const RDTSCP: u32 = 1 << 27;
    const DISABLED: u64 = 1 << 4;
    if cpuid(0x8000_0000, 0).eax < LEAF || cpuid(0x8000_0001, 0).ecx & SVM == 0 {
        return Err("the CPU has no AMD-V, or the firmware hides it: its setup may have a switch for virtualization");
    }
    // SAFETY: the register exists, because CPUID reported SVM; reads have no side effects.
    if unsafe { rdmsr(VM_CR) } & DISABLED != 0 {
        return Err("the firmware has disabled AMD-V: its setup may have a switch for SVM or virtualization");
    }
    if cpuid(1, 0).ecx & X2APIC == 0 {
        return Err("the CPU has no x2APIC");
    }
    let extended = cpuid(0x8000_0001, 0).edx;
    if extended & RDTSCP == 0 {
        return Err("the CPU has no RDTSCP");
    }
    let leaf = cpuid(LEAF, 0);
    if leaf.edx & NESTED_PAGING == 0 {
        return Err("the CPU's AMD-V has no nested paging");
    }
    if leaf.ebx < 2 {
        return Err("the CPU's AMD-V has no address-space identifiers");
    }
    Ok(Features {
        largest_page: if extended & 1 << 26 != 0 { Level::L1 } else { Level::L2 },
        asids: leaf.ebx,
        next_rip: leaf.edx & NEXT_RIP != 0,
        pause_loops: leaf.edx & PAUSE_FILTER != 0,
        apic: ApicVirtualization::Off,
    })
}

/// Enables AMD-V on this CPU, permanently ("Enabling SVM").
///
/// # Errors
/// No memory is left.
pub fn turn_on(features: &Features, cpu: &mut Cpu) -> Result<(), &'static str> {
    const SVME: u64 = 1 << 12;
    const OSFXSR: u64 = 1 << 9;
    const OSXSAVE: u64 = 1 << 18;
    let pages = memory::allocate_pages(CPU_PAGES * PAGE_SIZE)?;
    // For guests' XCR0, and for access to their SIMD registers.
    let xsave = if cpuid(1, 0).ecx & 1 << 26 != 0 { OSXSAVE } else { 0 };
    let cr4 = read_cr!("cr4") | OSFXSR | xsave;
    cpu.virt.own.set(pages + PAGE_SIZE);
    cpu.virt.has_next_rip.set(features.next_rip);
    cpu.virt.asids.set(Some(Asids::new(features.asids)));
    // SAFETY: CPUID enumerates SVM; the pages are this CPU's alone. CR4 changes no bits that Stile depends on.
    unsafe {
        wrmsr(msr::IA32_EFER, rdmsr(msr::IA32_EFER) | SVME);
        wrmsr(VM_HSAVE_PA, pages);
        core::arch::asm!("mov cr4, {}", in(reg) cr4, options(nostack));
        core::arch::asm!("vmsave rax", in("rax") pages + PAGE_SIZE, options(nostack));
    }
    state::mask_by_global_flag();
    Ok(())
}
