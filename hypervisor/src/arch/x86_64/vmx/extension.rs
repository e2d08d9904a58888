//! VMX operation, and the controls that decide what exits (the manual, "VM-Execution Control Fields").

use stile_blob::ApicVirtualization;
use stile_board::footprint::{self, Footprint};
pub use stile_nested_vmx::controls::{entry, exit, pin, primary, secondary};
use stile_paging::PAGE_SIZE;
use stile_paging::table::Level;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{cpuid, msr, rdmsr, read_cr, wrmsr};
use crate::memory;
use crate::once::Once;

/// Mode of operation, for the operator.
pub const LEVEL: stile_wire::Level = stile_wire::Level::Vmx;
/// Pages of each CPU: the VMXON region.
pub const CPU_PAGES: u64 = 1;
/// Whether VMs can own PCI functions.
pub const ASSIGNS_FUNCTIONS: bool = false;
/// Memory that the back end takes.
pub const FOOTPRINT: Footprint = footprint::X86_64;

/// Features of VMX operation. CPUs that differ from the boot CPU are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Supported level of APIC virtualization. Its controls are not among those below: see `virtual_apic.rs`.
    pub apic: ApicVirtualization,
    /// Level of the largest EPT pages.
    pub largest_page: Level,
    /// VMCS revision identifier.
    pub revision: u32,
    /// Pin-based controls.
    pub pin: u32,
    /// Primary processor-based controls.
    pub primary: u32,
    /// Secondary processor-based controls.
    pub secondary: u32,
    /// Whether the monitor trap flag is supported. The control is set for single instructions only.
    pub steps: bool,
    /// Whether PAUSE-loop exiting is supported. The control is switched: see [`crate::arch::x86_64::vmx::pauses`].
    pub pause_loops: bool,
    /// Whether VMCS shadowing is supported, with writable read-only fields.
    pub shadowing: bool,
    /// Whether the gate is supported ([`crate::arch::x86_64::vmx::gate`]): EPTP switching, execute-only pages, and a guest's
    /// pages of 1 GiB.
    pub gate: bool,
    /// As [`Features::pin`].
    pub exit: u32,
    /// VM-entry controls, without [`entry::IA32E_GUEST`].
    pub entry: u32,
    /// CR0 and CR4 bits fixed to 1 in VMX operation, and those that may be 1.
    pub cr0: (u64, u64),
    /// CR4 bits fixed to 1 in VMX operation, and those that may be 1.
    pub cr4: (u64, u64),
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

/// Returns the wanted controls with those that must be 1 by a capability register, if all wanted ones are supported
/// (the manual, "VMX Capability Reporting Facility", algorithm of "VM-Execution Controls").
fn controls(register: u32, wanted: u32, optional: u32) -> Option<u32> {
    // SAFETY: `detect` checked for VMX and the true controls.
    let allowed = unsafe { rdmsr(register) };
    let (must, may) = (allowed as u32, (allowed >> 32) as u32);
    (wanted & !may == 0).then_some(must | wanted | optional & may)
}

const TRUE_PIN: u32 = 0x48d;
const TRUE_PRIMARY: u32 = 0x48e;
const TRUE_EXIT: u32 = 0x48f;
const TRUE_ENTRY: u32 = 0x490;
const SECONDARY: u32 = 0x48b;
const MISC: u32 = 0x485;
const FUNCTIONS: u32 = 0x491;
/// Of the VM functions: leaf 0.
pub const EPTP_SWITCHING: u64 = 1 << 0;

/// Supported level of APIC virtualization, on a CPU with true controls.
fn apic_virtualization() -> ApicVirtualization {
    const REGISTERS: u32 = secondary::APIC_ACCESSES | secondary::X2APIC_MODE | secondary::APIC_REGISTERS;
    let has = |register, wanted| controls(register, wanted, 0).is_some();
    if !has(TRUE_PRIMARY, primary::TPR_SHADOW) || !has(SECONDARY, REGISTERS) {
        ApicVirtualization::Off
    } else if !has(SECONDARY, secondary::INTERRUPT_DELIVERY) {
        ApicVirtualization::Registers
    } else if !has(TRUE_PIN, pin::POSTED_INTERRUPTS) {
        ApicVirtualization::Delivery
    } else {
        ApicVirtualization::Posted
    }
}

/// Detects the features of this CPU.
///
/// # Errors
/// A description of the missing feature.
pub fn detect() -> Result<Features, &'static str> {
    let leaf = cpuid(1, 0);
    if leaf.ecx & 1 << 5 == 0 {
        return Err("the CPU has neither VMX nor AMD-V, or the firmware hides it: its setup may have a switch for virtualization");
    }
    if leaf.ecx & 1 << 21 == 0 || leaf.ecx & 1 << 24 == 0 {
        return Err("the CPU has no x2APIC with a TSC deadline");
    }
    // SAFETY: the register exists, because CPUID reported VMX; reads have no side effects.
    let basic = unsafe { rdmsr(msr::IA32_VMX_BASIC) };
    if basic & 1 << 55 == 0 {
        return Err("the CPU's VMX is too old: it has no true controls");
    }
    if basic & 1 << 54 == 0 {
        return Err("the CPU's VMX is too old: exits do not report the operands of INS and OUTS");
    }
    let lacks = "the CPU's VMX lacks a control that Stile needs";
    let pin = controls(TRUE_PIN, pin::EXTERNAL_INTERRUPTS | pin::NMIS | pin::VIRTUAL_NMIS, 0).ok_or(lacks)?;
    let wanted = primary::IO_BITMAPS | primary::MSR_BITMAPS | primary::SECONDARY | primary::RDPMC | primary::MWAIT | primary::MONITOR;
    // CR8 accesses the virtual APIC's TPR.
    let wanted = wanted | primary::CR8_LOAD | primary::CR8_STORE | primary::TSC_OFFSET;
    let primary = controls(TRUE_PRIMARY, wanted, 0).ok_or(lacks)?;
    let wanted = secondary::EPT | secondary::VPID | secondary::UNRESTRICTED_GUEST;
    let secondary = controls(SECONDARY, wanted, secondary::RDTSCP | secondary::INVPCID | secondary::WBINVD)
        .ok_or("the CPU has no extended page tables, virtual-processor identifiers or unrestricted guests")?;
    let wanted = exit::SAVE_DEBUG
        | exit::HOST_64
        | exit::ACKNOWLEDGE_INTERRUPT
        | exit::SAVE_PAT
        | exit::LOAD_PAT
        | exit::SAVE_EFER
        | exit::LOAD_EFER;
    let exit = controls(TRUE_EXIT, wanted, 0).ok_or(lacks)?;
    let entry = controls(TRUE_ENTRY, entry::LOAD_DEBUG | entry::LOAD_PAT | entry::LOAD_EFER, 0).ok_or(lacks)?;
    // SAFETY: VMX with EPT and VPID is supported.
    let capable = unsafe { rdmsr(msr::IA32_VMX_EPT_VPID_CAP) };
    // Four-level walks, write-back tables, 2 MiB pages, single-context INVEPT and INVVPID.
    const NEEDED: u64 = 1 << 6 | 1 << 14 | 1 << 16 | 1 << 20 | 1 << 25 | 1 << 32 | 1 << 41;
    if capable & NEEDED != NEEDED {
        return Err("the CPU's extended page tables lack large pages or invalidations");
    }
    const PAGES_OF_1_GIB: u64 = 1 << 17;
    let largest_page = if capable & PAGES_OF_1_GIB != 0 { Level::L1 } else { Level::L2 };
    // SAFETY: the registers exist, because CPUID reported VMX; reads have no side effects.
    let fixed = unsafe {
        [
            (rdmsr(msr::IA32_VMX_CR0_FIXED0), rdmsr(msr::IA32_VMX_CR0_FIXED1)),
            (rdmsr(msr::IA32_VMX_CR4_FIXED0), rdmsr(msr::IA32_VMX_CR4_FIXED1)),
        ]
    };
    let revision = basic as u32 & 0x7fff_ffff;
    let apic = apic_virtualization();
    let steps = controls(TRUE_PRIMARY, primary::MONITOR_TRAP, 0).is_some();
    let pause_loops = controls(SECONDARY, secondary::PAUSE_LOOPS, 0).is_some();
    /// IA32_VMX_MISC: VMWRITE can write any field.
    const WRITE_ANY: u64 = 1 << 29;
    // SAFETY: the register exists, because CPUID reported VMX; reads have no side effects.
    let writes_any = unsafe { rdmsr(MISC) } & WRITE_ANY != 0;
    let has_functions = controls(SECONDARY, secondary::VM_FUNCTIONS, 0).is_some();
    // SAFETY: the register exists, as the control does; reads have no side effects.
    let switches_views = has_functions && unsafe { rdmsr(FUNCTIONS) } & EPTP_SWITCHING != 0;
    const EXECUTE_ONLY: u64 = 1 << 0;
    let has_huge_pages = cpuid(0x8000_0001, 0).edx & 1 << 26 != 0;
    let has_address_bits = cpuid(0x8000_0008, 0).eax & 0xff >= stile_gate::tables::ADDRESS_BITS;
    let gate = switches_views && capable & EXECUTE_ONLY != 0 && has_huge_pages && has_address_bits;
    let shadowing = writes_any && controls(SECONDARY, secondary::VMCS_SHADOWING, 0).is_some();
    Ok(Features {
        apic,
        largest_page,
        revision,
        pin,
        primary,
        secondary,
        steps,
        pause_loops,
        shadowing,
        gate,
        exit,
        entry,
        cr0: fixed[0],
        cr4: fixed[1],
    })
}

/// Enters VMX operation on this CPU, permanently.
///
/// # Errors
/// A description, if firmware has disabled VMX.
pub fn turn_on(features: &Features, _cpu: &mut Cpu) -> Result<(), &'static str> {
    const LOCKED: u64 = 1 << 0;
    const ALLOWED: u64 = 1 << 2;
    // SAFETY: VMX is supported; the register is writable while unlocked.
    unsafe {
        let control = rdmsr(msr::IA32_FEATURE_CONTROL);
        if control & LOCKED == 0 {
            wrmsr(msr::IA32_FEATURE_CONTROL, control | LOCKED | ALLOWED);
        } else if control & ALLOWED == 0 {
            return Err("the firmware has locked VMX: its setup may have a switch for virtualization");
        }
    }
    let region = memory::allocate_pages(PAGE_SIZE)?;
    write_revision(region, features.revision);
    let cr0 = (read_cr!("cr0") | features.cr0.0) & features.cr0.1;
    // OSXSAVE, for guests' XCR0; OSFXSR, for access to their SIMD registers.
    let xsave = if cpuid(1, 0).ecx & 1 << 26 != 0 { 1 << 18 } else { 0 };
    const OSFXSR: u64 = 1 << 9;
    let cr4 = (read_cr!("cr4") | features.cr4.0 | xsave | OSFXSR) & features.cr4.1;
    let failed: u8;
    // SAFETY: CR0 and CR4 change no bits that Stile depends on, and the region is a page for this CPU alone.
    unsafe {
        core::arch::asm!(
            "mov cr0, {cr0}",
            "mov cr4, {cr4}",
            "vmxon [{region}]",
            "setbe {failed}",
            cr0 = in(reg) cr0,
            cr4 = in(reg) cr4,
            region = in(reg) &region,
            failed = out(reg_byte) failed,
            options(nostack)
        );
    }
    if failed != 0 { Err("VMXON fails") } else { Ok(()) }
}

/// Writes the VMCS revision to a zeroed page, which makes it a VMCS or a VMXON region.
pub fn write_revision(page: u64, revision: u32) {
    // SAFETY: the page is new and the caller's alone.
    unsafe { crate::address_space::physical(page).cast::<u32>().write(revision) };
}

/// Invalidates this CPU's linear translations of a VPID.
pub fn invalidate_vpid(vpid: u64) {
    let descriptor = [vpid, 0];
    // SAFETY: invalidating TLBs affects performance only. Type 1: single context.
    unsafe { core::arch::asm!("invvpid {}, [{}]", in(reg) 1u64, in(reg) &descriptor, options(nostack)) };
}

/// Invalidates this CPU's translations through an EPT.
pub fn invalidate_ept(pointer: u64) {
    let descriptor = [pointer, 0];
    // SAFETY: invalidating TLBs affects performance only. Type 1: single context.
    unsafe { core::arch::asm!("invept {}, [{}]", in(reg) 1u64, in(reg) &descriptor, options(nostack)) };
}

/// EPT pointer (the manual, "Extended-Page-Table Pointer (EPTP)"): write-back tables, four-level walks.
pub const fn ept_pointer(root: u64) -> u64 {
    const WRITE_BACK: u64 = 6;
    const FOUR_LEVELS: u64 = 3 << 3;
    root | FOUR_LEVELS | WRITE_BACK
}
