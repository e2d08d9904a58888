//! Writes of the x2APIC's EOI, ICR and SELF IPI that are answered with the guest's FS, GS, TR, LDTR and MSRs of system calls in the
//! processor (`exit_wrmsr` in `exit.S`). So nothing here accesses GS, by which other code finds the CPU and its VMCB.

use stile_apic::Received;
use stile_ledger::x86_64 as rows;
use stile_svm::Field;

use super::block::leaf;
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
/// The MSR of SELF IPI.
pub const SELF_IPI: u32 = msr::X2APIC + 0x3f;

/// Returns the site of WRMSRs of a register, if it is one of the three.
pub const fn site(register: u32) -> Option<usize> {
    match register {
        EOI => Some(leaf::EOI),
        ICR => Some(leaf::ICR),
        SELF_IPI => Some(leaf::SELF_IPI),
        _ => None,
    }
}

/// The write is done.
const DONE: i32 = 0;
/// The write is left to the handler of all MSRs.
const NOT_DONE: i32 = -1;
/// The write is done, but its target runs on no CPU: `exit.S` calls [`handle_svm_wake`].
pub const WAKE_TARGET: i32 = -2;

/// Returns the value that the guest writes.
#[inline(always)]
fn value(cpu: &Cpu, vmcb: &Vmcb) -> u64 {
    cpu.frame.registers[gpr::RDX] << 32 | vmcb.read(Field::GUEST_RAX) & 0xffff_ffff
}

/// Returns the next RIP of the instruction, if nothing but RIP and the interrupt shadow changes and the APIC is in x2APIC mode.
#[inline(always)]
fn next(cpu: &Cpu, vmcb: &Vmcb, site: usize) -> Option<u64> {
    let steps = vmcb.read(Field::GUEST_RFLAGS) & (state::TF | inject::RF) != 0;
    if steps || cpu.vcpu().arch.events.any() { None } else { length::of_write(cpu, vmcb, site) }
}

/// Handles a write of EOI. Returns [`DONE`] or [`NOT_DONE`].
#[unsafe(no_mangle)]
extern "C" fn write_eoi_at_once(cpu: &mut Cpu, vmcb: Vmcb) -> i32 {
    let Some(next) = next(cpu, &vmcb, leaf::EOI) else { return NOT_DONE };
    if value(cpu, &vmcb) != 0 || !cpu.apic().end_at_once() {
        return NOT_DONE;
    }
    vmcb.complete(next);
    DONE
}

/// Handles a write of SELF IPI with interrupts enabled. Returns [`DONE`] or [`NOT_DONE`].
#[unsafe(no_mangle)]
extern "C" fn write_self_ipi_at_once(cpu: &mut Cpu, vmcb: Vmcb) -> i32 {
    let Some(next) = next(cpu, &vmcb, leaf::SELF_IPI) else { return NOT_DONE };
    let value = value(cpu, &vmcb);
    if value >> 8 != 0 || !cpu.apic().take_at_once(value as u8) {
        return NOT_DONE;
    }
    vmcb.inject(value as u8);
    // The write ends an interrupt shadow.
    vmcb.complete(next);
    DONE
}

/// Handles a write of the ICR. Returns [`DONE`], [`NOT_DONE`] or [`WAKE_TARGET`].
#[unsafe(no_mangle)]
extern "C" fn write_icr_at_once(cpu: &mut Cpu, vmcb: Vmcb) -> i32 {
    let Some(next) = next(cpu, &vmcb, leaf::ICR) else { return NOT_DONE };
    let own = cpu.vcpu();
    let value = value(cpu, &vmcb);
    let Some((to, vector)) = cpu.apic().send_to_one(value).filter(|&(to, _)| to != own.arch.id) else { return NOT_DONE };
    vmcb.complete(next);
    // APIC IDs are vCPU indexes (`Vcpu::reset`): with gaps between them no other APIC's gets here (`LocalApic::with_gaps`).
    if let Some(target) = own.vm().vcpus.get(to as usize)
        && target.arch.pages.interrupt(vector) == Received::Interrupt
    {
        let Some(there) = cpu::running_on(target) else { return WAKE_TARGET };
        Cpu::kick(there);
    }
    DONE
}

/// Wakes the vCPU to which [`write_icr_at_once`] has sent an interrupt. The caller-saved registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_svm_wake(cpu: &mut Cpu) -> Outcome {
    let to = cpu.frame.registers[gpr::RDX] as u32;
    if let Some(target) = cpu.vcpu().vm().vcpus.get(to as usize) {
        delivery::notify(target, Some(cpu), false);
    }
    Outcome::again(rows::WRMSR_X2APIC_ICR)
}
