//! VM entries: L1's VMLAUNCH and VMRESUME, and resumption of an L2 that Stile interrupted.

use stile_blob::ApicVirtualization;
use stile_ledger::RowId;
use stile_ledger::x86_64::reason;
use stile_nested_vmx::checks::{self, EntryFailure, Processor};
use stile_nested_vmx::{Field, Group, Groups, InstructionError, VmxResult};
use stile_wire::CrashReason;
use stile_x86_walk::GuestMemory;

use super::complete::complete;
use super::forward::{self, Exit};
use super::l0_exits;
use super::lists;
use super::merge::OfL1;
use super::state::{Entering, GuestVmx, NMI_WAS_BLOCKED, Offer, to_vmcs01};
use super::vmcs02::NONE;
use crate::arch::x86_64::handler::crash;
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::host::instructions::cpuid;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::inject::{NMI_BLOCKED, VALID};
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::extension::{self, primary, secondary};
use crate::arch::x86_64::vmx::vmcs;
use crate::cpu::Outcome;
use crate::vm::Vm;

/// RFLAGS in VMCS01 while L2 runs: interrupts are disabled, so that Stile injects none.
const FLAGS: u64 = 1 << 1;
/// Blocking by STI and by MOV SS.
const STI: u64 = 1 << 0;
const MOV_SS: u64 = 1 << 1;

/// Fields in these groups are checked, or composed, together with guest state that only VMCS02 may have: any of it (VM-exit controls
/// decide which registers the entry loads from VMCS12), and that of [`GuestVmx::save_checked`].
const MIXED: Groups = Groups::of(&[Group::Registers, Group::Segments, Group::Flags, Group::Entry, Group::Exit]);
const SLIGHTLY_MIXED: Groups = Groups::ALL.without(Groups::of(&[Group::Host, Group::Threshold]));

/// Handles L1's VMLAUNCH or VMRESUME after the first checks. Returns the failure, or that L2 is to be entered. After a failure, L1's shadow
/// VMCS is to be put.
pub fn enter(cpu: &mut Cpu, vmx: &mut GuestVmx, launch: bool, row: RowId) -> Result<Outcome, VmxResult> {
    let fail = |error| Err(VmxResult::fail(error, vmx.has_vmcs()));
    let blocking = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
    if blocking & MOV_SS != 0 {
        return fail(InstructionError::EntryMovSs);
    }
    if let Some(shadow) = &mut vmx.shadow {
        if vmx.current == NONE {
            return Err(VmxResult::FailInvalid);
        }
        shadow.collect(&mut vmx.vmcs12);
        to_vmcs01(cpu);
    } else if !vmx.load_enlightened(cpu, launch) {
        return Err(VmxResult::FailInvalid);
    }
    let fail = |error| Err(VmxResult::fail(error, true));
    match (launch, vmx.vmcs12.is_launched()) {
        (true, true) => return fail(InstructionError::LaunchNotClear),
        (false, false) => return fail(InstructionError::ResumeNotLaunched),
        _ => {}
    }
    // L2's VTPR is in memory.
    let threshold = if vmx.vmcs12.get(Field::TPR_THRESHOLD) != 0 { Group::Threshold.alone() } else { Groups::NONE };
    let changed = checks::remaining(&vmx.vmcs12, vmx.vmcs12.changed_groups().union(threshold));
    let has_msrs = vmx.vmcs12.get32(Field::ENTRY_MSR_LOADS) != 0;
    // The MSR-load list overwrites fields of VMCS02 that VMCS12 keeps if the list fails.
    if changed.intersects(MIXED) || has_msrs {
        vmx.save_rest(cpu);
    } else if changed.intersects(SLIGHTLY_MIXED) {
        vmx.save_checked(cpu);
    }
    let checked = if changed == Groups::NONE { Ok(()) } else { check(cpu, vmx, changed) };
    match checked {
        Ok(()) => {}
        Err(EntryFailure::Instruction(error)) => return fail(error),
        Err(failure) => {
            let (reason, qualification) = failure.exit().unwrap_or_default();
            vmx.l1_launched = cpu.launched == Launch::LAUNCHED;
            vmx.l1_flags = 0;
            vmx.note_nmi_blocking(blocking);
            vmcs::write(Field::GUEST_RFLAGS, FLAGS);
            let exit = Exit { reason: reason.into(), qualification, ..Exit::default() };
            return Ok(forward::refused(cpu, vmx, &exit));
        }
    }
    let l1 = OfL1::read(vmx.vmcs12.get32(Field::ENTRY_CONTROLS));
    vmx.l1_flags = vmcs::read(Field::GUEST_RFLAGS);
    vmcs::write(Field::GUEST_RFLAGS, FLAGS);
    // The entry is the instruction that ends blocking by STI, and determines blocking by NMI: events for L1 wait for nothing.
    if blocking & (STI | NMI_BLOCKED) != 0 {
        vmx.note_nmi_blocking(blocking);
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, 0);
    }
    vmx.l1_launched = cpu.launched == Launch::LAUNCHED;
    cpu.launched = Launch::L2;
    vmx.in_l2 = true;
    vmx.entering = Some(if launch { Entering::Launch } else { Entering::Resume });
    vmx.vmcs12.set_launched(true);
    // Whether L2 blocks NMIs is decided once it has been loaded.
    let waits = !is_quiet(cpu) && l0_exits::event_for_l1(cpu, |_| false).is_some();
    vmx.enter_vmcs02(cpu);
    vmx.write_changes(cpu, &l1);
    vmx.merge_msr_bitmap();
    vmx.choose_vpid();
    if !vmx.has_ept()
        && let Err(failure) = load_pdptes(cpu)
    {
        return Ok(fail_late(cpu, vmx, failure));
    }
    if has_msrs {
        if let Err(number) = lists::load_at_entry(cpu, vmx) {
            return Ok(fail_late(cpu, vmx, EntryFailure::MsrLoading(number)));
        }
        // IA32_TIME_STAMP_COUNTER and IA32_APIC_BASE may be among the MSRs.
        vmx.write_controls(cpu, Groups::NONE);
    }
    vmx.start_timer(cpu);
    let event = vmx.vmcs12.get(Field::ENTRY_INTERRUPTION);
    vmx.may_inject = event & VALID != 0;
    if vmx.may_inject {
        vmx.external = None;
        vmcs::write(Field::ENTRY_ERROR_CODE, vmx.vmcs12.get(Field::ENTRY_ERROR_CODE));
        vmcs::write(Field::ENTRY_LENGTH, vmx.vmcs12.get(Field::ENTRY_LENGTH));
        vmcs::write(Field::ENTRY_INTERRUPTION, event);
        vmx.unblock_injected_nmi(event);
    }
    let outcome = Outcome::again(row);
    // Pending interrupts of L1 precede L2's first instruction: checked at entry.
    Ok(if waits || !vmx.vmcs02().is_launched() { outcome.choosing_entry() } else { outcome })
}

/// Whether L1, which has exited for an instruction, has no pending event: a quick test, which may say no for nothing. VMCS01 is current.
#[inline(always)]
fn is_quiet(cpu: &mut Cpu) -> bool {
    !cpu.vcpu().arch.events.any()
        && cpu.apic_level >= ApicVirtualization::Delivery
        && cpu.apic().is_quiet(vmcs::read(Field::GUEST_INTERRUPT_STATUS) as u16)
}

/// Fails an entry after loading guest state: the next one loads it again. VMCS02 is current.
#[cold]
fn fail_late(cpu: &mut Cpu, vmx: &mut GuestVmx, failure: EntryFailure) -> Outcome {
    vmx.vmcs12.touch();
    let (reason, qualification) = failure.exit().unwrap_or_default();
    let exit = Exit { reason: reason.into(), qualification, ..Exit::default() };
    forward::refused(cpu, vmx, &exit)
}

/// Loads the PDPTEs of an L2 with PAE paging without L1's EPT from memory ("Loading Page-Directory-Pointer-Table
/// Entries"): with EPT, which VMCS02 always uses, the processor takes them from the VMCS. VMCS02 is current.
fn load_pdptes(cpu: &Cpu) -> Result<(), EntryFailure> {
    /// Exit qualification of invalid PDPTEs ("VM-Entry Failures During or After Loading Guest State").
    const POINTERS: u64 = 2;
    let is_long = vmcs::read(Field::ENTRY_CONTROLS) & u64::from(extension::entry::IA32E_GUEST) != 0;
    if is_long || vmcs::read(Field::GUEST_CR0) & cr0::PG == 0 || cr0::load_cr3(cpu.vcpu().vm()) {
        return Ok(());
    }
    Err(EntryFailure::GuestState(POINTERS))
}

/// State of L1's processor, for the rules. VMCS01 is current.
pub fn processor(offer: &Offer, current: u64) -> Processor<'_> {
    /// SCE, LME, LMA and NXE.
    const EFER: u64 = 0xd01;
    const LMA: u64 = 1 << 10;
    /// LBR, which has no effect, and BTF.
    const DEBUGCTL: u64 = 0b11;
    let sizes = cpuid(0x8000_0008, 0).eax;
    Processor {
        capabilities: &offer.capabilities,
        physical_bits: sizes as u8,
        linear_bits: (sizes >> 8) as u8,
        efer: EFER,
        debugctl: DEBUGCTL,
        is_long: vmcs::read(Field::GUEST_EFER) & LMA != 0,
        current,
    }
}

/// Checks the changed parts of VMCS12.
fn check(cpu: &Cpu, vmx: &GuestVmx, changed: Groups) -> Result<(), EntryFailure> {
    let vm = cpu.vcpu().vm();
    let Some(offer) = vm.arch.nested.as_ref() else { return Ok(()) };
    let processor = processor(offer, vmx.address());
    let check = if vmx.unsaved.is_some() { checks::check_partly_loaded } else { checks::check };
    check(&vmx.vmcs12, &processor, &OfL1Memory(vm), changed).map_err(|(_, failure)| failure)
}

struct OfL1Memory(&'static Vm);

impl checks::Memory for OfL1Memory {
    fn read(&self, address: u64) -> Option<u64> {
        Ram(self.0).read_u64(address)
    }
}

impl GuestVmx {
    /// Invalidates translations by L1's VPID: the processor's VPID of L2s represents one of L1's at a time.
    fn choose_vpid(&mut self) {
        let vpid12 = if self.secondary12() & secondary::VPID != 0 { self.vmcs12.get(Field::VPID) as u16 } else { 0 };
        // Without VPIDs each entry invalidates.
        if vpid12 == 0 || vpid12 != self.vpid12 {
            self.vpid12 = vpid12;
            extension::invalidate_vpid(self.vpid.into());
        }
    }
}

/// Enters the loaded vCPU, which is in L2, with VMCS01 current. Called from `exit.S`, which acts on the result: 0:
/// VMRESUME, 1: VMLAUNCH, 2: enter L1 as [`Cpu::launched`] states.
#[unsafe(no_mangle)]
extern "C" fn resume_l2(whole: &mut WholeCpu) -> u32 {
    const RESUME: u32 = 0;
    const LAUNCH: u32 = 1;
    const L1: u32 = 2;
    let (cpu, vmx) = whole.split();
    let Some(vmx) = vmx.filter(|vmx| vmx.in_l2) else {
        cpu.launched = Launch::CLEAR;
        return L1;
    };
    to_vmcs01(cpu);
    // If the exit ends the VM, the vCPU is left by the reschedule requested here.
    if l0_exits::interrupt_l1(cpu, vmx).is_some() {
        return L1;
    }
    vmx.enter_vmcs02(cpu);
    l0_exits::refresh_offset(cpu, vmx);
    vmx.continue_timer(cpu);
    if vmx.vmcs02().launch() { LAUNCH } else { RESUME }
}

impl GuestVmx {
    /// Records whether NMIs are blocked in L1, by its interruptibility state. [`l1_flags`](Self::l1_flags) are set.
    #[cold]
    fn note_nmi_blocking(&mut self, interruptibility: u64) {
        if interruptibility & NMI_BLOCKED != 0 {
            self.l1_flags |= NMI_WAS_BLOCKED;
        }
    }
}

/// Handles a failed VMLAUNCH or VMRESUME of VMCS02. Returns `None` if the loaded vCPU is not in L2.
pub fn failed(whole: &mut WholeCpu, error: u64) -> Option<Outcome> {
    const HOST_STATE: u64 = 8;
    let (cpu, vmx) = whole.split();
    let vmx = vmx.filter(|vmx| vmx.in_l2)?;
    match vmx.entering.take() {
        Some(Entering::Launch) => vmx.vmcs12.set_launched(false),
        Some(Entering::Resume) => {}
        None => return Some(failed_again(cpu, vmx, error)),
    }
    to_vmcs01(cpu);
    vmx.in_l2 = false;
    vmx.timer = None;
    vmx.save_rest(cpu);
    vmx.drop_vmcs02(vmx.address());
    vmx.vmcs12.touch();
    cpu.launched = u64::from(vmx.l1_launched);
    vmx.choose_vmcs02();
    vmcs::write(Field::GUEST_RFLAGS, vmx.l1_flags & !NMI_WAS_BLOCKED);
    vmx.restore_nmi_blocking(cpu);
    // The entry may have changed the guest interrupt status.
    vmx.fill_shadow(cpu);
    let error = if error == HOST_STATE { InstructionError::EntryHostState } else { InstructionError::EntryControls };
    complete(vmx, VmxResult::fail(error, true));
    Some(Outcome::again(reason::VMX.other()))
}

/// Handles a failed entry to an L2 that has run since L1's instruction. L2's VTPR is in L1's memory, where it has fallen below the
/// threshold ("VM-Execution Control Fields"): L1 sees the exit that L2's own write of the TPR would have caused. VMCS02 is current.
#[cold]
fn failed_again(cpu: &mut Cpu, vmx: &mut GuestVmx, error: u64) -> Outcome {
    const OTHERWISE: u32 = secondary::APIC_ACCESSES | secondary::INTERRUPT_DELIVERY;
    let event = vmcs::read(Field::ENTRY_INTERRUPTION);
    if vmx.primary12() & primary::TPR_SHADOW == 0 || vmx.secondary12() & OTHERWISE != 0 {
        let outcome = crash(cpu, reason::ENTRY.other(), CrashReason::EntryFailed, error, event);
        to_vmcs01(cpu);
        return outcome;
    }
    let outcome = forward::forward_instead_of_entry(cpu, vmx, basic::PRIORITY, event);
    // If that was a VMLAUNCH, VMCS02 is not launched.
    vmx.vmcs02().clear();
    outcome
}

/// Handles an entry to L2 that failed because of invalid guest state, or an MSR of L1's list.
pub fn refused(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64) -> Outcome {
    let exit = Exit { reason, qualification: vmcs::read(Field::EXIT_QUALIFICATION), ..Exit::default() };
    // VMCS02 may differ by what the entry needed.
    vmx.vmcs12.touch();
    let outcome = forward::refused(cpu, vmx, &exit);
    // If that was a VMLAUNCH, VMCS02 is not launched.
    vmx.vmcs02().clear();
    outcome
}
