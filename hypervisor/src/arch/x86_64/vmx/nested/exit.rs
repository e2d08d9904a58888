//! Exits of L2: forwarded to L1, or handled by Stile.

use stile_ledger::x86_64::reason as reasons;
use stile_nested_vmx::intercepts::{self, Operands, Verdict};
use stile_x86_walk::GuestMemory;

use super::forward::{self, Exit};
use super::rows::own_row;
use super::second_stage::{EPT_MISCONFIGURATION, EPT_VIOLATION, Violation};
use super::state::GuestVmx;
use super::{device, enter, l0_exits, operand};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::{Leave, Outcome};

const EXTERNAL_INTERRUPT: u64 = basic::EXTERNAL_INTERRUPT as u64;

/// Handles an exit of L2, with all general registers in the frame and VMCS02 current.
#[unsafe(no_mangle)]
extern "C" fn handle_l2(whole: &mut WholeCpu) -> Outcome {
    let reason = vmcs::read(Field::EXIT_REASON) as u32 as u64;
    let (cpu, Some(vmx)) = whole.split() else {
        // Exits arrive here only while a VMCS02 is current.
        whole.leave = Leave::Resched;
        return Outcome::leave(reasons::UNKNOWN.other());
    };
    if reason & basic::ENTRY_FAILURE != 0 {
        return enter::refused(cpu, vmx, reason);
    }
    vmx.entering = None;
    vmx.may_inject = reason != EXTERNAL_INTERRUPT;
    let outcome = match reason {
        EPT_VIOLATION if vmx.has_shadow() => match vmx.violation(cpu) {
            Violation::Resolved => Outcome::again(own_row(cpu, reason)),
            Violation::Reinjects => {
                let row = own_row(cpu, reason);
                l0_exits::resume_or_leave(cpu, vmx, row)
            }
            Violation::OfL1(qualification) => forward::forward(cpu, vmx, &Exit { qualification, ..Exit::read(reason) }),
            Violation::Misconfigured => forward::forward(cpu, vmx, &Exit { qualification: 0, ..Exit::read(EPT_MISCONFIGURATION) }),
            Violation::ApicFetch(qualification) => forward::forward(cpu, vmx, &Exit { qualification, ..Exit::read(basic::APIC_ACCESS) }),
            Violation::Device(address) => {
                let outcome = l0_exits::device(cpu, vmx, |cpu, vmx| device::violation(cpu, vmx, address));
                trap(cpu, vmx, outcome)
            }
        },
        EXTERNAL_INTERRUPT => l0_exits::interrupt(cpu, vmx),
        _ => {
            let exit = Exit::read(reason);
            let asked = intercepts::Exit {
                reason: reason as u16,
                qualification: exit.qualification,
                interruption: exit.event as u32,
                error_code: exit.code as u32,
            };
            match intercepts::verdict(&asked, &vmx.vmcs12, &OfL2(cpu)) {
                Verdict::Forward => forward::forward_at_once(cpu, vmx, &exit),
                Verdict::Keep | Verdict::SecondStage => {
                    let outcome = l0_exits::handle(cpu, vmx, reason);
                    trap(cpu, vmx, outcome)
                }
            }
        }
    };
    // L2 is entered at once, with VMCS02 current.
    if vmx.in_l2 && !outcome.has(Outcome::LEAVE_BIT) {
        vmx.continue_timer(cpu);
    }
    outcome
}

/// Exits to L1 if the instruction that Stile has completed is to be trapped.
fn trap(cpu: &mut Cpu, vmx: &mut GuestVmx, outcome: Outcome) -> Outcome {
    if !vmx.traps {
        return outcome;
    }
    if outcome.has(Outcome::LEAVE_BIT) || !vmx.in_l2 {
        // The next entry injects it.
        vmx.traps = false;
        return outcome;
    }
    vmx.take_trap();
    forward::forward(cpu, vmx, &Exit { reason: basic::MONITOR_TRAP, ..Exit::default() })
}

/// Operands of L2 that L1's intercepts depend on.
struct OfL2<'a>(&'a Cpu);

impl Operands for OfL2<'_> {
    fn register(&self, number: usize) -> u64 {
        operand::register(self.0, number)
    }

    fn word(&self, address: u64) -> Option<u64> {
        Ram(self.0.vcpu().vm()).read_u64(address)
    }
}
