//! From exit to handler and back: `exit.S`, its dispatch table, and the values that handlers return.

mod entry_points;
mod failed_entry;

use core::mem::offset_of;

use stile_apic::Pages;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;

use crate::arch::x86_64::frame::exit_path;
use crate::arch::x86_64::host::cpu::{self, Cpu};
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::speculation;
use crate::arch::x86_64::host::xapic;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::block::OfCpu;
use crate::arch::x86_64::vmx::record;
use crate::arch::x86_64::vmx::vmcs::Field;
use crate::cpu::Outcome;
pub use entry_points::{entry_point, entry_point_of_l2, gate};

exit_path!(
    include_str!("exit.S"),
    include_str!("mitigated.S"),
    include_str!(concat!(env!("OUT_DIR"), "/traced.S"));
    EXIT_REASON = const Field::EXIT_REASON.0,
    WINDOW = const cpu::WINDOW,
    EPT_POINTER = const Field::EPT_POINTER.0,
    VIEW = const cpu::VIRT + offset_of!(OfCpu, view),
    XAPIC = sym xapic::REGISTERS,
    EXIT_INTERRUPTION = const Field::EXIT_INTERRUPTION.0,
    EXIT_LENGTH = const Field::EXIT_LENGTH.0,
    GUEST_INTERRUPT_STATUS = const Field::GUEST_INTERRUPT_STATUS.0,
    GUEST_RIP = const Field::GUEST_RIP.0,
    GUEST_RFLAGS = const Field::GUEST_RFLAGS.0,
    RECORDS_SOURCE = const cpu::RECORDS_SOURCE,
    RECORDS_BEFORE = const cpu::RECORDS_BEFORE,
    LAUNCHED = const cpu::LAUNCHED,
    WITH_ALL_BIT = const WITH_ALL_BIT,
    CHOOSES_ENTRY_BIT = const CHOOSES_ENTRY_BIT,
    DIRECT_DEADLINE = const cpu::DIRECT_DEADLINE,
    TSC_DEADLINE_MSR = const msr::IA32_TSC_DEADLINE,
    IRR_TO_TMR = const Pages::IRR_TO_TMR,
    TIMER_IRR = const cpu::TIMER_IRR,
    TIMER_BIT = const cpu::TIMER_BIT,
    TIMER_VECTOR = const cpu::TIMER_VECTOR,
    TIMER_PHYSICAL = const cpu::TIMER_PHYSICAL,
    TIMER_KEEPS = const cpu::TIMER_KEEPS,
    GUEST_TIMER_ROW = const rows::INTERRUPT_GUEST_TIMER.raw(),
    EOI_MSR = const crate::arch::x86_64::host::apic::EOI,
    TSC_DEADLINE_ROW = const rows::WRMSR_TSC_DEADLINE.raw(),
    STUBS = const REASONS,
    IA32_FLUSH_CMD = const msr::IA32_FLUSH_CMD,
    FLUSH_L1D = const speculation::FLUSH_L1D,
);

/// Bit of an [`Outcome`] that requests the slow handler, with all registers saved.
const WITH_ALL_BIT: u32 = Outcome::OWN_BIT;

impl Outcome {
    /// Requests the handler that gets all general registers: this one has done nothing.
    #[inline(always)]
    pub const fn with_all_registers() -> Outcome {
        Outcome::again(RowId::masked(0)).with(WITH_ALL_BIT)
    }
}

/// Bit of a nested handler's [`Outcome`]: enter as [`Cpu::launched`] states, instead of by VMRESUME.
const CHOOSES_ENTRY_BIT: u32 = Outcome::OWN_BIT;

impl Outcome {
    /// Re-entry by VMLAUNCH or VMRESUME, as [`Cpu::launched`] states.
    pub const fn choosing_entry(self) -> Outcome {
        self.with(CHOOSES_ENTRY_BIT)
    }
}

// `exit.S` tests this bit as the sign of the 64-bit outcome.
const _: () = assert!(Outcome::LEAVE_BIT == 63);

/// Number of basic exit reasons that are dispatched (the manual, "VMX Basic Exit Reasons"); higher ones go to
/// `exit_other`.
const REASONS: usize = 80;

/// Address of a stub in `exit.S`, which is not callable as a function.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "read by exit.S")]
struct Stub(unsafe extern "C" fn());

unsafe extern "C" {
    fn exit_other();
    fn exit_interrupt();
    fn exit_cpuid();
    fn exit_vmcall();
    fn exit_hlt();
    fn exit_rdmsr();
    fn exit_wrmsr();
    fn exit_io();
    fn exit_ept_violation();
    fn exit_vmx();
    fn enter_guest(cpu: *mut core::ffi::c_void) -> !;
    fn traced_exit_other();
    fn traced_exit_interrupt();
    fn traced_exit_cpuid();
    fn traced_exit_vmcall();
    fn traced_exit_hlt();
    fn traced_exit_rdmsr();
    fn traced_exit_wrmsr();
    fn traced_exit_io();
    fn traced_exit_ept_violation();
    fn traced_exit_vmx();
    fn enter_guest_mitigated(cpu: *mut core::ffi::c_void) -> !;
    fn handle_other();
    fn handle_interrupt_mitigated();
    fn handle_cpuid();
    fn handle_vmcall();
    fn handle_hlt();
    fn handle_rdmsr();
    fn handle_wrmsr();
    fn handle_io();
    fn handle_ept_violation_full();
    fn handle_vmx();
}

/// Stubs of CPUs that do not record, by basic exit reason.
#[unsafe(no_mangle)]
static EXIT_STUBS: [Stub; REASONS] = {
    let mut stubs = [Stub(exit_other); REASONS];
    stubs[basic::EXTERNAL_INTERRUPT] = Stub(exit_interrupt);
    stubs[basic::CPUID] = Stub(exit_cpuid);
    stubs[basic::HLT] = Stub(exit_hlt);
    stubs[basic::VMCALL] = Stub(exit_vmcall);
    stubs[basic::IO] = Stub(exit_io);
    stubs[basic::RDMSR] = Stub(exit_rdmsr);
    stubs[basic::WRMSR] = Stub(exit_wrmsr);
    stubs[basic::EPT_VIOLATION] = Stub(exit_ept_violation);
    with_vmx(stubs, Stub(exit_vmx))
};

/// Stubs of CPUs that record a trace, by basic exit reason.
#[unsafe(no_mangle)]
static TRACED_EXIT_STUBS: [Stub; REASONS] = {
    let mut stubs = [Stub(traced_exit_other); REASONS];
    stubs[basic::EXTERNAL_INTERRUPT] = Stub(traced_exit_interrupt);
    stubs[basic::CPUID] = Stub(traced_exit_cpuid);
    stubs[basic::HLT] = Stub(traced_exit_hlt);
    stubs[basic::VMCALL] = Stub(traced_exit_vmcall);
    stubs[basic::IO] = Stub(traced_exit_io);
    stubs[basic::RDMSR] = Stub(traced_exit_rdmsr);
    stubs[basic::WRMSR] = Stub(traced_exit_wrmsr);
    stubs[basic::EPT_VIOLATION] = Stub(traced_exit_ept_violation);
    with_vmx(stubs, Stub(traced_exit_vmx))
};

/// Handlers by basic exit reason for `mitigated.S`, which calls each with all general registers in the frame.
#[unsafe(no_mangle)]
static MITIGATED_HANDLERS: [Stub; REASONS] = {
    let mut handlers = [Stub(handle_other); REASONS];
    handlers[basic::EXTERNAL_INTERRUPT] = Stub(handle_interrupt_mitigated);
    handlers[basic::CPUID] = Stub(handle_cpuid);
    handlers[basic::HLT] = Stub(handle_hlt);
    handlers[basic::VMCALL] = Stub(handle_vmcall);
    handlers[basic::IO] = Stub(handle_io);
    handlers[basic::RDMSR] = Stub(handle_rdmsr);
    handlers[basic::WRMSR] = Stub(handle_wrmsr);
    handlers[basic::EPT_VIOLATION] = Stub(handle_ept_violation_full);
    with_vmx(handlers, Stub(handle_vmx))
};

/// Returns a dispatch table with `entry` for the exits of VMX instructions.
const fn with_vmx(mut table: [Stub; REASONS], entry: Stub) -> [Stub; REASONS] {
    let mut reason = basic::VMX_FIRST;
    while reason <= basic::VMX_LAST {
        table[reason] = entry;
        reason += 1;
    }
    table[basic::INVEPT] = entry;
    table[basic::INVVPID] = entry;
    table
}

/// Enters the guest of the loaded vCPU for the first time on this CPU; later entries are in `exit.S`.
pub fn enter(cpu: &mut Cpu) -> ! {
    speculation::enter_first(cpu);
    let enter = if speculation::is_needed_at_exits() { enter_guest_mitigated } else { enter_guest };
    // SAFETY: `cpu` is this CPU's own block, above its stack, which RSP may point to. The caller has loaded a vCPU
    // (`PhysicalCpu::enter`), whose load has put its general registers into the frame.
    unsafe { enter((&raw mut *cpu).cast()) }
}

/// Starts or stops recording of the loaded vCPU's exits, if there is one: otherwise no VMCS is current. Returns whether that changed.
pub fn trace(cpu: &Cpu, on: bool) -> bool {
    cpu.vcpu.is_some() && {
        record::choose_source(cpu);
        entry_points::trace(on)
    }
}
