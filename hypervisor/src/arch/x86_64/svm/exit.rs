//! From exit to handler and back: `exit.S`, and the values that handlers return.

use core::mem::offset_of;

use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;
use stile_svm::{Field, clean, exit};

use super::block::{LastAnswer, OfCpu, Site, leaf};
use super::{at_once, local};
use crate::arch::x86_64::frame::exit_path;
use crate::arch::x86_64::host::cpu::{self, Cpu};
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::speculation;
use crate::cpu::Outcome;

exit_path!(
    include_str!("exit.S"),
    include_str!(concat!(env!("OUT_DIR"), "/traced.S")),
    include_str!(concat!(env!("OUT_DIR"), "/cleared.S")),
    include_str!(concat!(env!("OUT_DIR"), "/cleared_traced.S"));
    BARRIER_AT_EXITS = const speculation::BARRIER_AT_EXITS,
    IA32_PRED_CMD = const msr::IA32_PRED_CMD,
    IBPB = const speculation::IBPB,
    VMCB = const local::VMCB,
    LOADED = const cpu::VIRT + offset_of!(OfCpu, loaded),
    ENTRY = const cpu::VIRT + offset_of!(OfCpu, entry),
    OWN = const cpu::VIRT + offset_of!(OfCpu, own),
    GUEST_RAX = const Field::GUEST_RAX.offset,
    CLEAN = const Field::CLEAN.offset,
    CLEAN_ALL = const clean::ALL as i32,
    TLB_CONTROL = const Field::TLB_CONTROL.offset,
    EXIT_CODE = const Field::EXIT_REASON.offset,
    EXIT_INFO_1 = const Field::EXIT_INFO_1.offset,
    ENTRY_INTERRUPTION = const Field::ENTRY_INTERRUPTION.offset,
    GUEST_RIP = const Field::GUEST_RIP.offset,
    GUEST_CR3 = const Field::GUEST_CR3.offset,
    GUEST_RFLAGS = const Field::GUEST_RFLAGS.offset,
    GUEST_CS_RIGHTS = const Field::GUEST_CS_RIGHTS.offset,
    NEXT_RIP = const Field::NEXT_RIP.offset,
    GUEST_INTERRUPTIBILITY = const Field::GUEST_INTERRUPTIBILITY.offset,
    LAST_LEAF = const cpu::VIRT + offset_of!(OfCpu, last) + offset_of!(LastAnswer, leaf),
    LAST_ANSWER = const cpu::VIRT + offset_of!(OfCpu, last) + offset_of!(LastAnswer, registers),
    CPUID_EXIT = const exit::CPUID,
    HLT_EXIT = const exit::HLT,
    INTR_EXIT = const exit::INTR,
    IO_EXIT = const exit::IO,
    MSR_EXIT = const exit::MSR,
    VMMCALL_EXIT = const exit::VMMCALL,
    X2APIC_EOI = const at_once::EOI,
    X2APIC_ICR = const at_once::ICR,
    X2APIC_SELF_IPI = const at_once::SELF_IPI,
    WAKE_TARGET = const at_once::WAKE_TARGET,
    EOI_ROW = const rows::WRMSR_X2APIC_EOI.raw(),
    ICR_ROW = const rows::WRMSR_X2APIC_ICR.raw(),
    SELF_IPI_ROW = const rows::WRMSR_X2APIC_SELF_IPI.raw(),
    NPF = const exit::NPF,
    WITH_ALL_BIT = const WITH_ALL_BIT,
    HAS_NEXT_RIP = const cpu::VIRT + offset_of!(OfCpu, has_next_rip),
    SITE_CPUID = const cpu::VIRT + offset_of!(OfCpu, sites) + leaf::CPUID * size_of::<Site>(),
    SITE_RDMSR = const cpu::VIRT + offset_of!(OfCpu, sites) + leaf::RDMSR * size_of::<Site>(),
    SITE_VMMCALL = const cpu::VIRT + offset_of!(OfCpu, sites) + leaf::VMMCALL * size_of::<Site>(),
    SITE_RIP = const offset_of!(Site, rip),
    SITE_CR3 = const offset_of!(Site, cr3),
    SITE_CODE = const offset_of!(Site, code),
    SITE_TABLES = const offset_of!(Site, tables),
);

// `exit.S` finds stubs by the lowest byte of exit codes.
const _: () = assert!(exit::NPF & 0xff == 0 && exit::CR_WRITE > 0 && exit::INVALID & 0xff == 0xff && exit::TLBSYNC < 0xff);

/// Bit of an [`Outcome`] that requests the slow handler: nothing was done.
const WITH_ALL_BIT: u32 = Outcome::OWN_BIT;

impl Outcome {
    /// Nothing was done: call the slow handler.
    #[inline(always)]
    pub const fn with_all_registers() -> Outcome {
        Outcome::again(RowId::masked(0)).with(WITH_ALL_BIT)
    }

    /// Whether nothing was done.
    #[inline(always)]
    pub const fn wants_all_registers(&self) -> bool {
        self.has(WITH_ALL_BIT)
    }
}

// `exit.S` tests the bit as the sign.
const _: () = assert!(Outcome::LEAVE_BIT == 63);

unsafe extern "C" {
    fn enter_guest(cpu: *mut core::ffi::c_void) -> !;
    fn enter_full();
    fn traced_enter_full();
    fn cleared_enter_full();
    fn cleared_traced_enter_full();
}

/// Entry of an exit path: with the mitigations that this machine needs at exits, and with records of exits or without.
fn entry(records: bool) -> u64 {
    let entry = match (speculation::is_needed_at_exits(), records) {
        (false, false) => enter_full,
        (false, true) => traced_enter_full,
        (true, false) => cleared_enter_full,
        (true, true) => cleared_traced_enter_full,
    };
    entry as *const () as u64
}

/// First entry of this CPU into a guest; later ones are in `exit.S`.
pub fn enter(cpu: &mut Cpu) -> ! {
    speculation::enter_first(cpu);
    if cpu.virt.entry.get() == 0 {
        cpu.virt.entry.set(entry(false));
    }
    // SAFETY: the block is this CPU's own, a vCPU is loaded, and its general registers are in the frame.
    unsafe { enter_guest((&raw mut *cpu).cast()) }
}

/// Starts or stops recording of this CPU's exits, from the next one on that leaves its vCPU, as this one does. Returns whether that changed.
pub fn trace(cpu: &Cpu, on: bool) -> bool {
    let entry = entry(on);
    cpu.virt.entry.replace(entry) != entry
}
