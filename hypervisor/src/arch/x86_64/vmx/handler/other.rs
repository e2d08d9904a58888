//! Rare exits.

use stile_ledger::x86_64::{self as rows, reason};
use stile_nested_vmx::intercepts::is_absent_instruction;
use stile_wire::CrashReason;

use super::{apic, entry, intercepted};
use crate::arch::x86_64::handler::{counters, crash, skip_instruction, task, window, xsetbv};
use crate::arch::x86_64::host::cpu::gpr;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vcpu::{cr0, inject};
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::direct;
use crate::arch::x86_64::vmx::nested;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::{Leave, Outcome};

/// Handles exit reasons without a stub of their own.
#[unsafe(no_mangle)]
extern "C" fn handle_other(cpu: &mut WholeCpu, reason: u64) -> Outcome {
    let reason = reason as u32 as u64;
    if reason & basic::ENTRY_FAILURE != 0 {
        return entry::refused(cpu, reason);
    }
    match reason {
        basic::TRIPLE_FAULT => crash(cpu, reason::TRIPLE_FAULT.other(), CrashReason::TripleFault, reason, 0),
        basic::EXCEPTION => intercepted::exit(cpu),
        // From a guest that sends IPIs itself, whatever target it meant.
        basic::INIT if direct::any() => Outcome::again(rows::INTERRUPT_SPURIOUS),
        basic::CONTROL_REGISTER => control_register(cpu),
        basic::XSETBV => xsetbv::set(cpu),
        // WBINVD and INVD: no effect, since caches are coherent and shared with other guests.
        basic::INVD | basic::WBINVD => {
            skip_instruction();
            Outcome::again(reason::INVD.other())
        }
        basic::INTERRUPT_WINDOW => window::interrupt(cpu),
        basic::NMI_WINDOW => window::nmi(cpu),
        basic::MONITOR_TRAP => window::stepped(cpu),
        basic::APIC_ACCESS => apic::access(cpu),
        basic::APIC_WRITE => apic::written(cpu),
        basic::EOI => apic::ended(cpu),
        basic::PRIORITY => apic::priority_lowered(cpu),
        basic::PAUSE => {
            // It spins for another vCPU, and others want this CPU.
            skip_instruction();
            cpu.leave = Leave::Yield;
            Outcome::leave(reason::PAUSE.other())
        }
        basic::RDPMC => {
            counters::read(cpu);
            Outcome::again(reason::RDPMC.other())
        }
        basic::MWAIT | basic::MONITOR | basic::GETSEC | basic::RSM | basic::VMFUNC => {
            // Instructions of features that the guest's CPUID hides.
            inject::undefined();
            Outcome::again(rows::absent(reason))
        }
        basic::TASK_SWITCH => task::switch(cpu),
        _ => {
            let row = cpu.loaded().ledger().row_for(reason::UNKNOWN, reason as u32);
            if is_absent_instruction(reason) {
                inject::undefined();
                return Outcome::again(row);
            }
            crash(cpu, row, CrashReason::UnknownExit, reason, 0)
        }
    }
}

/// Handles MOV to CR0 or CR4 that changes a bit of the guest/host mask, CLTS and LMSW (the manual, "Exit
/// Qualification for Control-Register Accesses").
fn control_register(cpu: &mut WholeCpu) -> Outcome {
    let qualification = vmcs::read(Field::EXIT_QUALIFICATION);
    let register = qualification & 0xf;
    let value = match qualification as usize >> 8 & 0xf {
        gpr::RSP => vmcs::read(Field::GUEST_RSP),
        n => cpu.frame.registers[n],
    };
    // Outside 64-bit code the upper halves are ignored.
    let value = if cr0::runs_64_bit_code() { value } else { value & 0xffff_ffff };
    let is_move = qualification >> 4 & 0b11 == 0;
    match register {
        0 if is_move => {
            if write_cr0(cpu, value) {
                skip_instruction();
            } else {
                inject::general_protection();
            }
            Outcome::again(rows::CR0)
        }
        // MOV from CR8 has access type 1.
        8 if is_move && value >> 4 != 0 => {
            inject::general_protection();
            Outcome::again(rows::CR8)
        }
        8 => {
            if is_move {
                cpu.apic().set_task_priority((value as u8) << 4);
            } else {
                let priority = u64::from(cpu.apic().task_priority() >> 4);
                match qualification as usize >> 8 & 0xf {
                    gpr::RSP => vmcs::write(Field::GUEST_RSP, priority),
                    n => cpu.frame.registers[n] = priority,
                }
            }
            skip_instruction();
            if is_move {
                delivery::pull(cpu);
            }
            Outcome::again(rows::CR8)
        }
        // A bit that guests do not have, or VMXE.
        4 => {
            let (cpu, vmx) = cpu.split();
            if is_move && nested::write_cr4(cpu.vcpu().vm(), vmx, value) {
                skip_instruction();
            } else {
                inject::general_protection();
            }
            Outcome::again(rows::CR4)
        }
        _ => {
            inject::general_protection();
            Outcome::again(reason::CR.other())
        }
    }
}

/// Writes CR0. Returns false if the value is invalid.
#[cold]
#[inline(never)]
fn write_cr0(cpu: &mut WholeCpu, value: u64) -> bool {
    let (cpu, vmx) = cpu.split();
    nested::may_write_cr0(vmx, value) && cr0::write(cpu.vcpu().vm(), value, 0)
}
