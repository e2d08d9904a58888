//! Exits of L2, and of software that L1 runs at EL1 without a second stage.

use stile_board::intid;
use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, key, reason};
use stile_nested_arm::forward::{self, Level, Verdict};
use stile_nested_arm::inject::{self, Kind};
use stile_nested_arm::shadow::Need;
use stile_sysreg::syndrome::{Ec, Esr, FaultKind};

use super::shadow::Unresolved;
use super::state::{Nested, Regime};
use super::{answer, exception, gic as guest_gic, serror, timer_interrupts, timers};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};
use crate::arch::aarch64::vcpu::inject as own_inject;
use crate::arch::aarch64::{handler, interrupts};
use crate::cpu::{Leave, Outcome};

/// Handles a synchronous exit.
pub fn exit(cpu: &mut Cpu, nested: &mut Nested, esr: u64) -> Outcome {
    let esr = Esr(esr);
    let from = if read_sysreg!(SPSR_EL2) & 0xf == 0 { Level::El0 } else { Level::El1 };
    match forward::verdict(esr, from, &nested.controls(cpu.vcpu().vm())) {
        Verdict::Forward => {
            let row = forwarded_row(cpu, esr);
            // Instructions that only Stile traps: L1 completes them, and gets the whole syndrome.
            let far = matches!(esr.ec(), Ec::WATCHPOINT_LOWER).then(|| read_sysreg!(FAR_EL2));
            exception::take(cpu, nested, Kind::Synchronous, Some(esr.0), far);
            Outcome::again(row)
        }
        Verdict::SecondStage => abort(cpu, nested, esr),
        // L1's machine has firmware, which its guest calls by SMC.
        Verdict::Undefined if esr.ec() == Ec::SMC64 => answer(cpu, nested, |cpu| handler::secure_call(cpu, esr.0)),
        // HVC with HCR_EL2.HCD set.
        Verdict::Undefined => {
            own_inject::undefined_hvc(esr);
            Outcome::again(rows::NESTED_UNDEFINED)
        }
        Verdict::Keep if esr.ec() == Ec::WFX => wait(cpu, nested, esr),
        // HCRX_EL2.MCE2 is set by Stile, not by L1.
        Verdict::Keep if esr.ec() == Ec::MOPS => {
            own_inject::same(esr);
            Outcome::again(rows::NESTED_MOPS)
        }
        Verdict::Keep => answer(cpu, nested, |cpu| answer::answer(cpu, esr.0)),
    }
}

/// Handles WFI and WFE that Stile traps because another vCPU wants the CPU.
fn wait(cpu: &mut Cpu, nested: &mut Nested, esr: Esr) -> Outcome {
    guest_gic::restore_el2(cpu, cpu.vcpu(), nested);
    let outcome = handler::wfx(cpu, esr.0);
    if guest_gic::guest_has_pending(nested) {
        cpu.leave = Leave::Yield;
    }
    outcome
}

fn forwarded_row(cpu: &mut Cpu, esr: Esr) -> RowId {
    match esr.ec() {
        Ec::HVC64 | Ec::HVC32 => rows::FORWARDED_HVC,
        Ec::SMC64 | Ec::SMC32 => rows::FORWARDED_SMC,
        Ec::WFX => rows::FORWARDED_WFX,
        Ec::FP | Ec::SVE | Ec::SME => rows::FORWARDED_FP,
        Ec::MSR => cpu.loaded().ledger().row_for(reason::FORWARDED, key::sysreg(esr.iss())),
        Ec::BREAKPOINT_LOWER | Ec::STEP_LOWER | Ec::WATCHPOINT_LOWER | Ec::BRK64 => rows::FORWARDED_DEBUG,
        _ => reason::FORWARDED.other(),
    }
}

/// Answers as for other vCPUs, with L1's own interrupts loaded, since the handler may add to them.
fn answer(cpu: &mut Cpu, nested: &mut Nested, handle: impl FnOnce(&mut Cpu) -> Outcome) -> Outcome {
    let vcpu = cpu.vcpu();
    guest_gic::restore_el2(cpu, vcpu, nested);
    let outcome = handle(cpu).finish();
    if !outcome.leaves() {
        resume(cpu, nested);
    }
    outcome
}

/// Resumes L2 with L1's own interrupts loaded: loads L2's, unless L1 has an interrupt to take first.
pub fn resume(cpu: &mut Cpu, nested: &mut Nested) {
    if nested.regime == Regime::El2 || nested.lists.is_some() {
        return;
    }
    let vcpu = cpu.vcpu();
    let is_interrupted = if guest_gic::routes_to_el2(nested) {
        guest_gic::restore_guest(cpu, vcpu, nested)
    } else {
        guest_gic::resume_unrouted(cpu, vcpu, nested);
        false
    };
    if is_interrupted {
        exception::take(cpu, nested, Kind::Irq, None, None);
    } else {
        nested.stand_in_for_el2();
        if nested.has_own_serror() {
            serror::take(cpu, nested);
        }
    }
}

/// Handles an abort of the second stage.
fn abort(cpu: &mut Cpu, nested: &mut Nested, esr: Esr) -> Outcome {
    /// The fault status code of a permission fault differs from that of a translation fault by this.
    const PERMISSION: u64 = 1 << 3;
    let is_fetch = esr.ec() == Ec::INSTRUCTION_ABORT_LOWER;
    let fault = esr.data_abort().fault();
    if !matches!(fault.kind(), FaultKind::Translation(_) | FaultKind::AccessFlag(_) | FaultKind::Permission(_)) {
        return answer(cpu, nested, |cpu| answer::answer(cpu, esr.0));
    }
    let Some(ipa) = faulting_ipa(esr) else {
        // L2 has changed its tables since: it retries.
        return Outcome::again(rows::FAULT_WALK);
    };
    let vm = cpu.vcpu().vm();
    match nested.resolve(vm, cpu.index, ipa, Need::of(esr)) {
        None => Outcome::again(match Need::of(esr) {
            _ if esr.data_abort().s1ptw() => rows::FAULT_WALK,
            Need::Execute => rows::FAULT_FETCH,
            Need::Write => rows::FAULT_WRITE,
            Need::Read => rows::FAULT_READ,
        }),
        Some(Unresolved::Forward(fault)) => {
            let far = read_sysreg!(FAR_EL2);
            nested.set_hpfar(inject::hpfar(ipa));
            exception::take(cpu, nested, Kind::Synchronous, Some(inject::abort(esr, fault)), Some(far));
            Outcome::again(if is_fetch { rows::FORWARDED_FETCH_ABORT } else { rows::FORWARDED_DATA_ABORT })
        }
        Some(Unresolved::Absent(address)) => {
            // The handler reads the address from Stile's own register; the page offset is in FAR_EL2. Of a permission fault it would
            // translate FAR_EL2 by L2's tables, and take the result for an address of L1.
            write_sysreg!(HPFAR_EL2, inject::hpfar(address));
            let is_permission = matches!(fault.kind(), FaultKind::Permission(_));
            let esr = if is_permission { esr.0 & !PERMISSION } else { esr.0 };
            answer(cpu, nested, |cpu| answer::answer(cpu, esr))
        }
    }
}

/// Faulting IPA: in HPFAR_EL2, except for permission faults of the access itself (Arm ARM, HPFAR_EL2), for which the
/// first stage is walked again.
fn faulting_ipa(esr: Esr) -> Option<u64> {
    let abort = esr.data_abort();
    if !matches!(abort.fault().kind(), FaultKind::Permission(_)) || abort.s1ptw() {
        return Some(handler::faulting_ipa());
    }
    let far = read_sysreg!(FAR_EL2);
    let kept = read_sysreg!(PAR_EL1);
    // SAFETY: AT writes PAR_EL1 only, which belongs to the guest and is restored.
    unsafe { core::arch::asm!("at s1e1r, {}", in(reg) far, options(nostack, preserves_flags)) };
    isb();
    let par = read_sysreg!(PAR_EL1);
    write_sysreg!(PAR_EL1, kept);
    // F; PA, bits 51:12.
    (par & 1 == 0).then_some(par & 0x000f_ffff_ffff_f000 | far & 0xfff)
}

/// Handles a physical IRQ.
pub fn irq(cpu: &mut Cpu, nested: &mut Nested) -> Outcome {
    let vcpu = cpu.vcpu();
    let has_own_interface = nested.lists.is_none();
    guest_gic::restore_el2(cpu, vcpu, nested);
    let intid = gic::acknowledge();
    let outcome = match intid {
        intid::TIMER_EL1_VIRTUAL | intid::TIMER_EL1_PHYSICAL => timer_interrupts::guest_timer(cpu, nested, intid),
        timers::STAND_IN => timer_interrupts::stand_in(cpu, nested),
        _ => {
            if intid == interrupts::maintenance() {
                guest_gic::sample_timers(cpu, vcpu, nested);
                if has_own_interface {
                    guest_gic::sample_maintenance(cpu, vcpu, nested);
                }
            }
            handler::other_irq::<false>(cpu, intid)
        }
    };
    if !outcome.leaves() {
        resume(cpu, nested);
    }
    outcome
}
