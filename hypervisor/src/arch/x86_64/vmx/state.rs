//! The loaded vCPU's state that the processor keeps in its control structure: here, fields of the current VMCS.

use core::arch::asm;

use stile_blob::Topology;
use stile_nested_vmx::nmi_window;

use super::extension::{self, entry, pin, primary, secondary};
pub use super::vmcs::{Field, read, write};
use crate::arch::x86_64::host::instructions::CpuidResult;

/// Bits of CR0 that guests do not change: NE is fixed to 1; CD and NW belong to the machine.
pub const CR0_HELD: u64 = CR0_SET | CR0_CLEAR;
/// Of them, those that are set.
pub const CR0_SET: u64 = 1 << 5;
/// Of them, those that are clear.
pub const CR0_CLEAR: u64 = 1 << 29 | 1 << 30;

/// Reads a field: none is converted.
#[inline(always)]
pub fn read_raw(field: Field) -> u64 {
    read(field)
}

/// Value of a field that [`read_raw`] has read.
#[inline(always)]
pub fn of_raw(_field: Field, raw: u64) -> u64 {
    raw
}

/// Ends blocking by STI and MOV SS after the following instruction.
#[inline(always)]
pub fn end_shadow() {
    let blocked = read(Field::GUEST_INTERRUPTIBILITY);
    if blocked & 0b11 != 0 {
        write(Field::GUEST_INTERRUPTIBILITY, blocked & !0b11);
    }
}

/// Field of a segment register. `first`: that of ES. Fields are in the order of the registers' encoding, two apart.
pub const fn of_segment(first: Field, number: u32) -> Field {
    Field(first.0 + 2 * number)
}

/// Returns the controls of entries, by whether the guest is in long mode.
pub fn entry_controls(long: bool) -> u64 {
    u64::from(extension::features().entry | if long { entry::IA32E_GUEST } else { 0 })
}

/// Bits of CR4 that are fixed to 1.
pub fn fixed_cr4() -> u64 {
    extension::features().cr4.0
}

/// Writes EFER.LMA for the loaded guest, whose EFER is `efer`: it enables or disables paging.
pub fn set_long_mode(efer: u64, on: bool) {
    const LMA: u64 = 1 << 10;
    let controls = read(Field::ENTRY_CONTROLS);
    let ia32e = u64::from(entry::IA32E_GUEST);
    let (efer, controls) = if on { (efer | LMA, controls | ia32e) } else { (efer & !LMA, controls & !ia32e) };
    write(Field::GUEST_EFER, efer);
    write(Field::ENTRY_CONTROLS, controls);
}

/// Features of KVM's interface that only this back end has.
pub const KVM_FEATURES: u32 = 0;

/// Whether guests can execute INVPCID.
pub fn passes_invpcid() -> bool {
    extension::features().secondary & secondary::INVPCID != 0
}

/// Whether guests can execute RDTSCP.
pub fn passes_rdtscp() -> bool {
    extension::features().secondary & secondary::RDTSCP != 0
}

/// An extended leaf of CPUID for guests: the processor's own.
#[inline(always)]
pub fn leaf_of_guests(_leaf: u32, own: CpuidResult, _topology: Topology) -> CpuidResult {
    own
}

/// Invalidates this CPU's linear translations of the loaded vCPU.
pub fn invalidate_translations() {
    extension::invalidate_vpid(read(Field::VPID));
}

/// Fields with the PDPTEs of PAE paging, while in use.
pub const PDPTES: [Field; 4] = [Field::GUEST_PDPTE0, Field::GUEST_PDPTE1, Field::GUEST_PDPTE2, Field::GUEST_PDPTE3];

/// The processor checks reserved bits of PDPTEs when it loads them, and not when it walks.
pub const LOADS_PDPTES: bool = true;

/// Sets the PDPTEs.
pub fn set_pdptes(pointers: [u64; 4]) {
    for (field, pointer) in PDPTES.into_iter().zip(pointers) {
        write(field, pointer);
    }
}

/// Returns the PDPTEs in use. `from_memory` reads those that CR3 leads to.
pub fn pdptes(_from_memory: impl FnOnce() -> [u64; 4]) -> [u64; 4] {
    PDPTES.map(read)
}

/// Injects an event at the next entry ("VM-Entry Interruption-Information Field").
#[inline(always)]
pub fn inject(event: u64) {
    write(Field::ENTRY_INTERRUPTION, event);
}

/// Selects whether the loaded vCPU exits when it can take an interrupt.
pub fn exit_when_it_can(on: bool) {
    let controls = read(Field::PRIMARY_CONTROLS);
    let window = u64::from(primary::INTERRUPT_WINDOW);
    let new = if on { controls | window } else { controls & !window };
    if new != controls {
        write(Field::PRIMARY_CONTROLS, new);
    }
}

/// Has the loaded vCPU exit when it can take an NMI. Returns false, without effect, if that is when it can take an interrupt: the
/// caller requests that exit. `blocked`: the interruptibility; `injects`: an event is injected before.
pub fn exit_when_nmis_can(blocked: u64, injects: bool) -> bool {
    let control = nmi_window(blocked, injects, extension::features().steps);
    let is_own = control != primary::INTERRUPT_WINDOW;
    if is_own {
        exit_by(control, true);
    }
    is_own
}

/// The loaded vCPU has exited because it can take an NMI.
pub fn end_nmi_window() {
    exit_by(primary::NMI_WINDOW, false);
}

/// The loaded vCPU has exited behind the instruction that blocked an NMI.
pub fn end_step_of_nmi() {
    exit_by(primary::MONITOR_TRAP, false);
}

/// Sets NMI-window exiting, or the monitor trap flag.
fn exit_by(control: u32, on: bool) {
    let controls = read(Field::PRIMARY_CONTROLS);
    let control = u64::from(control);
    write(Field::PRIMARY_CONTROLS, if on { controls | control } else { controls & !control });
}

/// Whether the processor keeps the blocking by NMI of the loaded vCPU.
pub fn has_virtual_nmis() -> bool {
    read(Field::PIN_CONTROLS) & u64::from(pin::VIRTUAL_NMIS) != 0
}

/// BS in "pending debug exceptions".
const BS: u64 = 1 << 14;

/// Clears a pending single step.
pub fn end_step() {
    write(Field::GUEST_PENDING_DEBUG, read(Field::GUEST_PENDING_DEBUG) & !BS);
}

/// Makes a single step pending.
pub fn pend_step() {
    write(Field::GUEST_PENDING_DEBUG, read(Field::GUEST_PENDING_DEBUG) | BS);
}

/// Sets CR2, the linear address of a page fault.
pub fn set_fault_address(address: u64) {
    // SAFETY: CR2 holds the loaded guest's value: Stile takes no page faults that it survives.
    unsafe { asm!("mov cr2, {}", in(reg) address, options(nomem, nostack, preserves_flags)) };
}

/// Returns CR2.
pub fn fault_address() -> u64 {
    crate::arch::x86_64::host::instructions::read_cr!("cr2")
}

/// Returns DR6.
pub fn dr6() -> u64 {
    let value;
    // SAFETY: DR6 holds the loaded guest's value; a VM exit clears DR7.GD ("Loading Host Control Registers").
    unsafe { asm!("mov {}, dr6", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Sets DR6.
pub fn set_dr6(value: u64) {
    // SAFETY: DR6 holds the loaded guest's value, and Stile sets no breakpoints: only the guest observes it.
    unsafe { asm!("mov dr6, {}", in(reg) value, options(nomem, nostack, preserves_flags)) };
}

/// Makes the next entry of the loaded vCPU fail, for tests: see [`stile_board::pc::port::TEST_ENTRY`].
#[cold]
pub fn fail_entry(by: u64) {
    /// Valid, of type 1, which is reserved ("VM-Entry Controls for Event Injection").
    const RESERVED_EVENT: u64 = 1 << 31 | 1 << 8;
    /// There are four activity states ("Guest Non-Register State").
    const NO_ACTIVITY: u64 = 4;
    match by {
        0 => write(Field::ENTRY_INTERRUPTION, RESERVED_EVENT),
        _ => write(Field::GUEST_ACTIVITY, NO_ACTIVITY),
    }
}

/// Whether the next entry injects an event, at an exit for a physical interrupt: the processor takes none during the delivery of an event.
pub const fn injects_at_interrupts() -> bool {
    false
}

/// Takes Stile's pending interrupts, whose handlers only set a bit. Interrupts are masked before and after.
pub fn take_interrupts() {
    // SAFETY: Stile's interrupt handlers only set a bit. STI delays interrupts until after the NOP.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}
