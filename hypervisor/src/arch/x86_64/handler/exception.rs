//! Intercepted exceptions: debug exceptions and alignment checks, whose delivery can raise the next one in an endless
//! loop during which the processor takes no interrupt (CVE-2015-5307, CVE-2015-8104). Each exits, after which Stile
//! checks for interrupts.

use core::arch::asm;

use stile_ledger::x86_64::{self as rows, reason};

use super::{Field, interrupt, vmcs};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::{delivery, events};
use crate::arch::x86_64::vcpu::inject::{self, NMI, TYPE, vector};
use crate::cpu::Leave;

const HARDWARE_EXCEPTION: u64 = 3 << 8;
/// INT1.
const PRIVILEGED_SOFTWARE_EXCEPTION: u64 = 5 << 8;

/// Handles an intercepted exception or an NMI.
pub fn exit(cpu: &mut Cpu) -> Outcome {
    let event = vmcs::read(Field::EXIT_INTERRUPTION);
    if event & TYPE == NMI {
        // A spurious NMI.
        return Outcome::again(reason::NMI.other());
    }
    inject::block_nmis_if_iret(event);
    let interrupted = inject::was_delivering().then(|| vmcs::read(Field::VECTORING));
    side_effects(event);
    inject::event(event, vmcs::read(Field::EXIT_INTERRUPTION_CODE));
    // A benign exception replaces the event being delivered.
    if let Some(event) = interrupted {
        delivery::put_back(cpu, event);
    }
    let row = if event as u8 == vector::ALIGNMENT { rows::EXCEPTION_ALIGNMENT } else { rows::EXCEPTION_DEBUG };
    resume_or_leave(cpu, row)
}

/// Whether an intercepted exception has the side effects of a debug exception ([`debug`]): INT1 has its vector, but no cause.
pub fn is_debug(event: u64) -> bool {
    event & (TYPE | 0xff) == HARDWARE_EXCEPTION | u64::from(vector::DEBUG)
}

/// Side effects of an intercepted exception that is about to be injected.
pub fn side_effects(event: u64) {
    if is_debug(event) {
        debug(vmcs::read(Field::EXIT_QUALIFICATION));
    } else if event & TYPE == PRIVILEGED_SOFTWARE_EXCEPTION {
        // It has been executed: the shadow before it has ended. Entry with a shadow and TF would need a pending step.
        inject::end_shadow();
    }
}

/// Side effects of a debug exception: sets the cause in DR6, clears DR7.GD and the branch-step flag ("Debug
/// Exceptions"). A single step blocked by STI or MOV SS is pending, which entry checks.
pub fn debug(why: u64) {
    /// DR6: breakpoints; an access to a debug register, a single step, a task's T flag.
    const CONDITIONS: u64 = 0xf;
    const BD: u64 = 1 << 13;
    const BS: u64 = 1 << 14;
    const BT: u64 = 1 << 15;
    const REPORTED: u64 = CONDITIONS | BD | BS | BT;
    /// DR7.
    const GD: u64 = 1 << 13;
    const LBR_BTF: u64 = 0b11;
    const SHADOWS: u64 = 0b11;
    // The step before an access to a debug register was delivered already, or MOV SS suppressed it: Bochs reports it
    // again.
    let why = if why & BD != 0 { why & !BS } else { why };
    let mut dr6: u64;
    // SAFETY: DR6 holds the loaded guest's value, and Stile sets no breakpoints: only the guest observes it.
    unsafe {
        asm!("mov {}, dr6", out(reg) dr6, options(nomem, nostack, preserves_flags));
        dr6 = dr6 & !CONDITIONS | why & REPORTED;
        asm!("mov dr6, {}", in(reg) dr6, options(nomem, nostack, preserves_flags));
    }
    vmcs::write(Field::GUEST_DR7, vmcs::read(Field::GUEST_DR7) & !GD);
    if vmcs::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS != 0 && vmcs::read(Field::GUEST_RFLAGS) & super::TF != 0 {
        inject::step();
    }
    vmcs::write(Field::GUEST_DEBUGCTL, vmcs::read(Field::GUEST_DEBUGCTL) & !LBR_BTF);
}

/// The next entry injects an event, which may exit before the processor takes interrupts: takes those that are
/// pending.
pub fn resume_or_leave(cpu: &mut Cpu, row: stile_ledger::RowId) -> Outcome {
    // SAFETY: Stile's interrupt handlers only set a bit. STI delays interrupts by one instruction.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
    if !cpu.has_noted() {
        return Outcome::again(row);
    }
    interrupt::idle(cpu);
    if cpu.vcpu().arch.events.init() {
        return events::leave(cpu, row);
    }
    cpu.leave = Leave::Resched;
    Outcome::leave(row)
}
