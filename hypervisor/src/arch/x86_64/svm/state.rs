//! The loaded vCPU's state that the processor keeps in its control structure: here, fields of its VMCB.
//!
//! From the first entry on, CLGI masks interrupts in Stile, and RFLAGS.IF is set: VMRUN needs it, so that physical
//! interrupts exit ("Global Interrupt Flag, STGI and CLGI Instructions"; "Interrupt Masking in EFLAGS and V_INTR_MASKING").

use core::arch::asm;

use stile_blob::Topology;
use stile_svm::intercept::{interrupt, tlb, word_3};
pub use stile_svm::{Field, Form};
use stile_svm::{clean, is_of_software, pack, unpack};

use super::local::{VMCB, set_vmcb};
use crate::address_space;
use crate::arch::x86_64::host::cpu;
use crate::arch::x86_64::host::instructions::{CpuidResult, cpuid};
use crate::arch::x86_64::host::{apic, idt, speculation};

/// Guests own CR0: the second stage, not CR0.CD, decides about Stile's caches.
pub const CR0_HELD: u64 = 0;
/// Bits that are set whatever guests write.
pub const CR0_SET: u64 = 0;
/// Bits that are clear whatever guests write.
pub const CR0_CLEAR: u64 = 0;
/// EFER.SVME, which is set while a guest runs ("Canonicalization and Consistency Checks").
const SVME: u64 = 1 << 12;

/// Address of the loaded vCPU's VMCB.
#[inline(always)]
fn vmcb() -> *mut u8 {
    let address: *mut u8;
    // SAFETY: GS points to the CPU's block since `install`. The word changes only when another vCPU is loaded.
    unsafe { asm!("mov {}, gs:[{VMCB}]", out(reg) address, VMCB = const VMCB, options(pure, readonly, nostack, preserves_flags)) };
    address
}

#[inline(always)]
fn load<T: Copy>(offset: u16) -> T {
    // SAFETY: the VMCB is a page of the loaded vCPU, which only this CPU accesses, and all fields lie in it, aligned.
    unsafe { vmcb().add(offset.into()).cast::<T>().read_volatile() }
}

#[inline(always)]
fn store<T: Copy>(offset: u16, value: T) {
    // SAFETY: as of `load`. Only this back end chooses controls, which confine the guest.
    unsafe { vmcb().add(offset.into()).cast::<T>().write_volatile(value) };
}

/// The loaded vCPU's VMCB, whose address is read once: for frequent exits.
#[repr(transparent)]
pub struct Vmcb(*mut u8);

/// Returns the VMCB. No other vCPU is loaded while it is in use.
#[inline(always)]
pub fn loaded() -> Vmcb {
    Vmcb(vmcb())
}

impl Vmcb {
    /// Reads a field of 8 bytes.
    #[inline(always)]
    pub fn read(&self, field: Field) -> u64 {
        // SAFETY: the VMCB is a page of the loaded vCPU, which only this CPU accesses, and all fields lie in it, aligned.
        unsafe { self.0.add(field.offset.into()).cast::<u64>().read_volatile() }
    }

    /// Reads an event field (EXITINTINFO, EVENTINJ) without its error code: the low 4 bytes.
    #[inline(always)]
    pub fn event(&self, field: Field) -> u32 {
        // SAFETY: as of `read`.
        unsafe { self.0.add(field.offset.into()).cast::<u32>().read_volatile() }
    }

    /// Attributes of CS, in the VMCB's format.
    #[inline(always)]
    pub fn code_segment(&self) -> u16 {
        // SAFETY: as of `read`.
        unsafe { self.0.add(Field::GUEST_CS_RIGHTS.offset.into()).cast::<u16>().read_volatile() }
    }

    /// Completes the instruction before RIP `next`, and so ends the interrupt shadow of its predecessor.
    #[inline(always)]
    pub fn complete(&self, next: u64) {
        self.write(Field::GUEST_RIP, next);
        // SAFETY: as of `read`.
        unsafe { self.0.add(Field::GUEST_INTERRUPTIBILITY.offset.into()).write_volatile(0) };
    }

    /// Injects an interrupt at the next entry.
    #[inline(always)]
    pub fn inject(&self, vector: u8) {
        const VALID: u32 = 1 << 31;
        // SAFETY: as of `read`. The field has no clean bit.
        unsafe { self.0.add(Field::ENTRY_INTERRUPTION.offset.into()).cast::<u32>().write_volatile(VALID | u32::from(vector)) };
    }

    /// Whether the previous instruction blocks interrupts.
    #[inline(always)]
    pub fn has_shadow(&self) -> bool {
        // SAFETY: as of `read`.
        unsafe { self.0.add(Field::GUEST_INTERRUPTIBILITY.offset.into()).read_volatile() & 1 != 0 }
    }

    /// Writes a field of 8 bytes that has no clean bit.
    #[inline(always)]
    pub fn write(&self, field: Field, value: u64) {
        debug_assert!(field.clean == clean::NONE && matches!(field.form, Form::Qword), "clean bits are not updated");
        // SAFETY: as of `read`. No field without a clean bit confines the guest.
        unsafe { self.0.add(field.offset.into()).cast::<u64>().write_volatile(value) };
    }
}

/// Reads a field.
#[inline(always)]
pub fn read(field: Field) -> u64 {
    match field.form {
        Form::Byte => load::<u8>(field.offset).into(),
        Form::Word => load::<u16>(field.offset).into(),
        Form::Dword => load::<u32>(field.offset).into(),
        Form::Qword => load(field.offset),
        Form::Rights => unpack(load(field.offset)),
        Form::StackRights => unpack(load(field.offset)) & !(0b11 << 5) | (load::<u8>(Field::CPL.offset) as u64 & 0b11) << 5,
        Form::Efer => load::<u64>(field.offset) & !SVME,
        Form::Interruptibility => load::<u8>(field.offset) as u64 & 1 | (load::<u8>(Field::NMI_BLOCKED.offset) as u64 & 1) << 3,
        Form::Length => load::<u64>(field.offset).wrapping_sub(load(Field::GUEST_RIP.offset)),
        Form::Absent => 0,
    }
}

/// Reads a field as the VMCB has it, without a conversion: a value that differs if the field's does.
#[inline(always)]
pub fn read_raw(field: Field) -> u64 {
    match field.form {
        Form::Rights => load::<u16>(field.offset).into(),
        Form::Efer => load(field.offset),
        _ => read(field),
    }
}

/// Value of a field that [`read_raw`] has read.
pub fn of_raw(field: Field, raw: u64) -> u64 {
    match field.form {
        Form::Rights => unpack(raw as u16),
        Form::Efer => raw & !SVME,
        _ => raw,
    }
}

/// Calls `read` with the VMCB at a physical address as the loaded one, as which it is not loaded.
pub fn with_vmcb<T>(at: u64, read: impl FnOnce() -> T) -> T {
    let before = vmcb();
    // SAFETY: the caller owns the vCPU of the VMCB, which is permanent, and nothing is entered before the next line.
    unsafe { set_vmcb(address_space::physical(at)) };
    let result = read();
    // SAFETY: it was the loaded vCPU's, if any.
    unsafe { set_vmcb(before) };
    result
}

/// Goes on with a step over IRET that was in progress when the VM was saved ([`step_over_iret`]).
pub fn continue_step_over_iret() {
    if read(Field::NMI_STEP) & STEPPING != 0 {
        intercept(Field::INTERCEPTS_3, word_3::IRET, false);
    }
}

/// Ends blocking of interrupts by the previous instruction.
#[inline(always)]
pub fn end_shadow() {
    store(Field::GUEST_INTERRUPTIBILITY.offset, 0u8);
}

/// Writes a field.
#[inline(always)]
pub fn write(field: Field, value: u64) {
    match field.form {
        Form::Byte => store(field.offset, value as u8),
        Form::Word => store(field.offset, value as u16),
        Form::Dword => store(field.offset, value as u32),
        Form::Qword => store(field.offset, value),
        Form::Rights => store(field.offset, pack(value)),
        Form::StackRights => {
            store(field.offset, pack(value));
            store(Field::CPL.offset, (value >> 5 & 0b11) as u8);
        }
        Form::Efer => store(field.offset, value | SVME),
        Form::Interruptibility => set_interruptibility(value),
        Form::Length | Form::Absent => {}
    }
    if field.clean != clean::NONE {
        store(Field::CLEAN.offset, load::<u32>(Field::CLEAN.offset) & !field.clean);
    }
}

fn set_interruptibility(value: u64) {
    const SHADOWS: u64 = 0b11;
    const BY_NMI: u64 = 1 << 3;
    store(Field::GUEST_INTERRUPTIBILITY.offset, u8::from(value & SHADOWS != 0));
    store(Field::NMI_BLOCKED.offset, u8::from(value & BY_NMI != 0));
    // IRET ends the blocking.
    intercept(Field::INTERCEPTS_3, word_3::IRET, value & BY_NMI != 0);
}

/// Selects whether something exits. `word`: the intercepts that have its `bit`.
pub fn intercept(word: Field, bit: u32, on: bool) {
    let (old, bit) = (read(word), u64::from(bit));
    let new = if on { old | bit } else { old & !bit };
    if new != old {
        write(word, new);
    }
}

/// Field of a segment register. `first`: that of ES.
#[inline(always)]
pub const fn of_segment(first: Field, number: u32) -> Field {
    first.of_segment(number as u16)
}

/// The processor has no such controls.
pub fn entry_controls(_long: bool) -> u64 {
    0
}

/// No bits of CR4 are fixed to 1.
pub fn fixed_cr4() -> u64 {
    0
}

/// Writes EFER.LMA for the loaded guest, whose EFER is `efer`: it enables or disables paging.
pub fn set_long_mode(efer: u64, on: bool) {
    const LMA: u64 = 1 << 10;
    write(Field::GUEST_EFER, if on { efer | LMA } else { efer & !LMA });
}

/// Features of KVM's interface that only this back end has: its clock, ends of interrupts by a bit in memory, and that the clock is the
/// same on all vCPUs.
pub const KVM_FEATURES: u32 = 1 << 3 | 1 << 6 | 1 << 24;

/// Guests can execute INVPCID: their identifiers are tagged with the ASID.
pub fn passes_invpcid() -> bool {
    cpuid(7, 0).ebx & 1 << 10 != 0
}

/// Guests can execute RDTSCP.
pub fn passes_rdtscp() -> bool {
    true
}

/// An extended leaf of CPUID for guests: the processor's own, but in leaf 8000_0008H the features of speculation control that guests
/// have, and the VM's number of cores.
pub fn leaf_of_guests(leaf: u32, own: CpuidResult, topology: Topology) -> CpuidResult {
    const SIZES: u32 = 0x8000_0008;
    /// CLZERO, pointers of FXSAVE, WBNOINVD.
    const EBX: u32 = 1 << 0 | 1 << 2 | 1 << 9;
    if leaf != SIZES {
        return own;
    }
    // NC; and ApicIdSize, if gaps between identifiers make it differ from NC's.
    let (_, size) = if topology.fits_apic_ids() { (0, 0) } else { topology.apic_shifts() };
    CpuidResult {
        eax: own.eax & 0xffff,
        ebx: own.ebx & EBX | speculation::guests().leaf_8_of_guests(),
        ecx: (topology.per_socket() as u32).saturating_sub(1) & 0xff | (size & 0xf) << 12,
        edx: 0,
    }
}

/// Invalidates this CPU's translations at the next entry of the loaded vCPU. `exit.S` clears the request.
pub fn invalidate_translations() {
    write(Field::TLB_CONTROL, tlb::FLUSH_ALL);
}

/// The processor reads PDPTEs from memory when it walks ("Legacy PAE Mode" under "Nested Paging"), and QEMU (10.0,
/// `mmu_translate`) then sets bit 5 in them, which is reserved.
pub const LOADS_PDPTES: bool = false;

/// There is nothing to set: see [`LOADS_PDPTES`].
pub fn set_pdptes(_pointers: [u64; 4]) {}

/// Returns the PDPTEs in use: those in memory.
pub fn pdptes(from_memory: impl FnOnce() -> [u64; 4]) -> [u64; 4] {
    from_memory()
}

/// Selects whether the loaded vCPU exits when it can take an interrupt: by a virtual one, of which only the intercept
/// is wanted.
pub fn exit_when_it_can(on: bool) {
    const WINDOW: u64 = interrupt::V_IRQ | interrupt::V_INTR_PRIORITY | interrupt::V_IGNORE_TPR;
    let old = read(Field::INTERRUPT_CONTROL);
    let new = if on { old | WINDOW } else { old & !WINDOW };
    if new != old {
        write(Field::INTERRUPT_CONTROL, new);
    }
    intercept(Field::INTERCEPTS_3, word_3::VINTR, on);
}

/// Injects an event at the next entry. An NMI blocks others. A software interrupt or exception is not injected: RIP is
/// that of its instruction, which is executed again.
pub fn inject(event: u64) {
    const KIND: u64 = 0x7ff;
    const NMI: u64 = 2 << 8 | 2;
    const BY_NMI: u64 = 1 << 3;
    if is_of_software(event) {
        return;
    }
    if event & KIND == NMI {
        write(Field::GUEST_INTERRUPTIBILITY, read(Field::GUEST_INTERRUPTIBILITY) | BY_NMI);
    }
    write(Field::ENTRY_INTERRUPTION, event);
}

/// Whether the next entry injects an event, at an exit for a physical interrupt: one that exits during the delivery of an injected event
/// has it injected again.
pub fn injects_at_interrupts() -> bool {
    read(Field::ENTRY_INTERRUPTION) & 1 << 31 != 0
}

/// Has the loaded vCPU exit when it can take an NMI; one that handles an NMI exits at its IRET in any case. Returns false, without
/// effect, if an interrupt shadow blocks it, which ends without another exit: the caller requests that for interrupts.
pub fn exit_when_nmis_can(blocked: u64, _injects: bool) -> bool {
    if blocked & 0b11 != 0 {
        return false;
    }
    if load::<u8>(Field::NMI_BLOCKED.offset) == 0 {
        apic::kick(cpu::this_index());
    }
    true
}

/// The vCPU can take an NMI: nothing was requested of the processor.
pub fn end_nmi_window() {}

/// Without a monitor trap flag this does not happen.
pub fn end_step_of_nmi() {}

/// Has the loaded vCPU, which is about to return from an NMI, exit behind its IRET: NMIs are blocked until then.
pub fn step_over_iret() {
    let flags = read(Field::GUEST_RFLAGS);
    intercept(Field::INTERCEPTS_3, word_3::IRET, false);
    write(Field::NMI_STEP, STEPPING | if flags & TF != 0 { GUESTS_TF } else { 0 });
    write(Field::GUEST_RFLAGS, flags | TF);
}

/// Ends [`step_over_iret`] with the blocking of NMIs. Returns `None` if it was not in progress, or whether the guest itself steps.
/// `complete`: IRET has loaded RFLAGS.
pub fn end_step_over_iret(complete: bool) -> Option<bool> {
    let step = read(Field::NMI_STEP);
    if step & STEPPING == 0 {
        return None;
    }
    write(Field::NMI_STEP, 0);
    store(Field::NMI_BLOCKED.offset, 0u8);
    let guests = step & GUESTS_TF != 0;
    if !guests {
        if complete {
            set_dr6(dr6() & !BS);
        } else {
            write(Field::GUEST_RFLAGS, read(Field::GUEST_RFLAGS) & !TF);
        }
    }
    Some(guests)
}

/// Bits of [`Field::NMI_STEP`]: a step is in progress; RFLAGS.TF was set by the guest.
const STEPPING: u64 = 1;
const GUESTS_TF: u64 = 1 << 1;
/// Both.
pub const NMI_STEP: u64 = STEPPING | GUESTS_TF;
/// RFLAGS.TF.
pub const TF: u64 = 1 << 8;

/// IRET does not change the blocking by NMI, which is Stile's.
pub fn has_virtual_nmis() -> bool {
    false
}

/// DR6.BS.
const BS: u64 = 1 << 14;
/// EVENTINJ of a debug exception.
const DEBUG: u64 = stile_svm::exception(1);

/// Drops a single step that [`pend_step`] has injected.
pub fn end_step() {
    if read(Field::ENTRY_INTERRUPTION) == DEBUG {
        write(Field::ENTRY_INTERRUPTION, 0);
    }
}

/// Injects a single step, unless another event is injected.
pub fn pend_step() {
    if read(Field::ENTRY_INTERRUPTION) & 1 << 31 == 0 {
        set_dr6(dr6() | BS);
        write(Field::ENTRY_INTERRUPTION, DEBUG);
    }
}

/// Clears DEBUGCTL.BTF and LBR, as a debug exception does.
pub fn end_branch_steps() {
    const LBR_BTF: u64 = 0b11;
    write(Field::GUEST_DEBUGCTL, read(Field::GUEST_DEBUGCTL) & !LBR_BTF);
}

/// Sets CR2, the linear address of a page fault.
pub fn set_fault_address(address: u64) {
    write(Field::GUEST_CR2, address);
}

/// Returns CR2.
pub fn fault_address() -> u64 {
    read(Field::GUEST_CR2)
}

/// Returns DR6.
pub fn dr6() -> u64 {
    read(Field::GUEST_DR6)
}

/// Sets DR6.
pub fn set_dr6(value: u64) {
    write(Field::GUEST_DR6, value);
}

/// Makes the next entry of the loaded vCPU fail, for tests: there is no ASID 0 for guests.
#[cold]
pub fn fail_entry(_by: u64) {
    write(Field::ASID, 0);
}

/// Masks interrupts by the global interrupt flag, from now on.
pub fn mask_by_global_flag() {
    // SAFETY: EFER.SVME is set. Interrupts are masked, now by another flag.
    unsafe { asm!("clgi", "sti", options(nostack)) };
    idt::GLOBAL_FLAG.store(true, core::sync::atomic::Ordering::Relaxed);
}

/// Takes Stile's pending interrupts, whose handlers only set a bit. Interrupts are masked before and after.
pub fn take_interrupts() {
    // SAFETY: Stile's interrupt handlers only set a bit. EFER.SVME and RFLAGS.IF are set since `mask_by_global_flag`.
    unsafe { asm!("stgi", "nop", "clgi", options(nostack)) };
}
