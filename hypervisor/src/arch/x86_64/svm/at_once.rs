//! Writes of the x2APIC's EOI and ICR that are answered with the guest's FS, GS, TR, LDTR and MSRs of system calls in the
//! processor (`exit_wrmsr` in `exit.S`). So nothing here accesses GS, by which other code finds the CPU and its VMCB.

use stile_apic::Received;
use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;
use stile_svm::Field;
use stile_x86_decode::Kind;

use super::length;
use super::state::{self, Vmcb};
use crate::arch::contract::PhysicalCpu;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::inject;
use crate::cpu::{self, Outcome};

/// The MSR of EOI.
pub const EOI: u32 = msr::X2APIC + 0x0b;
/// The MSR of the ICR.
pub const ICR: u32 = msr::X2APIC + 0x30;

/// The write is left to the handler of all MSRs.
const NOT_DONE: i32 = -1;
/// The write is done, but its target runs on no CPU: `exit.S` calls [`handle_svm_wake`].
pub const WAKE_TARGET: i32 = -2;

/// Handles a write of one of the two registers. Returns the number of the ledger's row, [`NOT_DONE`] or [`WAKE_TARGET`].
#[unsafe(no_mangle)]
extern "C" fn write_x2apic_at_once(cpu: &mut Cpu, vmcb: Vmcb) -> i32 {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let value = cpu.frame.registers[gpr::RDX] << 32 | vmcb.read(Field::GUEST_RAX) & 0xffff_ffff;
    let steps = vmcb.read(Field::GUEST_RFLAGS) & (state::TF | inject::RF) != 0;
    if steps || !cpu.has_x2apic() || cpu.vcpu().arch.events.any() {
        return NOT_DONE;
    }
    let Some(next) = length::known(cpu, &vmcb, Kind::Wrmsr) else { return NOT_DONE };
    if register == EOI {
        if value != 0 || !cpu.apic().end_at_once() {
            return NOT_DONE;
        }
        vmcb.complete(next);
        return row(rows::WRMSR_X2APIC_EOI);
    }
    let own = cpu.vcpu();
    let Some((to, vector)) = cpu.apic().send_to_one(value).filter(|&(to, _)| to != own.arch.id) else { return NOT_DONE };
    vmcb.complete(next);
    // APIC IDs are vCPU indexes (`Vcpu::reset`): with gaps between them no other APIC's gets here (`LocalApic::with_gaps`).
    if let Some(target) = own.vm().vcpus.get(to as usize)
        && target.arch.pages.interrupt(vector) == Received::Interrupt
    {
        let Some(there) = cpu::running_on(target) else { return WAKE_TARGET };
        Cpu::kick(there);
    }
    row(rows::WRMSR_X2APIC_ICR)
}

#[inline(always)]
const fn row(id: RowId) -> i32 {
    id.raw() as i32
}

/// Wakes the vCPU to which [`write_x2apic_at_once`] has sent an interrupt. The caller-saved registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_wake(cpu: &mut Cpu) -> Outcome {
    let to = cpu.frame.registers[gpr::RDX] as u32;
    if let Some(target) = cpu.vcpu().vm().vcpus.get(to as usize) {
        delivery::notify(target, Some(cpu), false);
    }
    Outcome::again(rows::WRMSR_X2APIC_ICR)
}
