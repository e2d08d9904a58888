//! Control registers of guests that exit: writes of CR4 and CR8, EFER.

use stile_apic::GeneralProtection;
use stile_ledger::RowId;
use stile_ledger::x86_64::{self as rows};
use stile_svm::Field;
use stile_x86_decode::Kind;

use super::permitted::{self, EFER, LMA, LME, NXE, PAE, PCIDE, SMEP};
use super::{length, state};
use crate::arch::x86_64::handler::mmio::{NO_ADDRESS, emulate};
use crate::arch::x86_64::handler::skip_instruction;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::cr0::{self, PG};
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::cpu::Outcome;

const PSE: u64 = 1 << 4;
const PGE: u64 = 1 << 7;

fn register(cpu: &Cpu, number: u8) -> u64 {
    let value = match usize::from(number & 0xf) {
        gpr::RSP => state::read(Field::GUEST_RSP),
        number => cpu.frame.registers[number],
    };
    // Outside 64-bit code the upper halves are ignored.
    if cr0::runs_64_bit_code() { value } else { value & 0xffff_ffff }
}

fn accept(valid: bool, row: RowId) -> Outcome {
    if valid {
        skip_instruction();
    } else {
        inject::general_protection();
    }
    Outcome::again(row)
}

/// Handles MOV to CR0 and LMSW that change bits other than TS and MP. (QEMU accepts values with which VMRUN then fails.)
pub fn write_cr0(cpu: &mut WholeCpu) -> Outcome {
    /// Bits that LMSW writes, of which it does not clear PE.
    const LMSW: u64 = 0xf;
    const PE: u64 = 1;
    let Some(found) = length::decode(cpu, &[Kind::ToControl, Kind::LoadMachineStatus]) else {
        // LMSW from memory, or other code by now.
        return emulate(cpu, rows::CR0, NO_ADDRESS);
    };
    let (old, operand) = (cr0::read(), register(cpu, found.register));
    let value = match found.kind {
        Kind::LoadMachineStatus => old & !LMSW | operand & LMSW | old & PE,
        _ => operand,
    };
    let done = set_cr0(cpu, old, value);
    accept(done, rows::CR0)
}

/// Sets CR0. Returns false if the value is invalid.
fn set_cr0(cpu: &Cpu, old: u64, value: u64) -> bool {
    /// Bits on which translations depend.
    const TRANSLATION: u64 = PG | 1 << 16 | 1;
    let done = cr0::write(cpu.vcpu().vm(), value, 0);
    if done && (old ^ value) & TRANSLATION != 0 {
        cpu.virt.forget_sites();
        state::invalidate_translations();
    }
    done
}

/// Handles MOV to CR4.
pub fn write_cr4(cpu: &mut WholeCpu) -> Outcome {
    let Some(found) = length::decode(cpu, &[Kind::ToControl]) else { return Outcome::again(rows::CR4) };
    let value = register(cpu, found.register);
    cpu.virt.forget_sites();
    accept(set_cr4(value), rows::CR4)
}

/// Sets CR4, as MOV to it does ("MOV CRn", Volume 3). Returns false if the value is invalid.
fn set_cr4(value: u64) -> bool {
    let (old, efer) = (state::read(Field::GUEST_CR4), state::read(Field::GUEST_EFER));
    let is_long = efer & LMA != 0;
    let opens_pcids = value & !old & PCIDE != 0;
    if value & !permitted::cr4() != 0
        || is_long && value & PAE == 0
        || opens_pcids && (!is_long || state::read(Field::GUEST_CR3) & 0xfff != 0)
    {
        return false;
    }
    state::write(Field::GUEST_CR4, value);
    if (old ^ value) & (PSE | PAE | PGE | PCIDE | SMEP) != 0 {
        state::invalidate_translations();
    }
    true
}

/// Handles MOV to CR8.
pub fn write_cr8(cpu: &mut WholeCpu) -> Outcome {
    let Some(found) = length::decode(cpu, &[Kind::ToControl]) else { return Outcome::again(rows::CR8) };
    let value = register(cpu, found.register);
    if value >> 4 == 0 {
        cpu.apic().set_task_priority((value as u8) << 4);
        skip_instruction();
        delivery::pull(cpu);
    } else {
        inject::general_protection();
    }
    Outcome::again(rows::CR8)
}

/// Reads EFER.
pub fn efer() -> u64 {
    state::read(Field::GUEST_EFER)
}

/// Writes EFER ("Extended Feature Enable Register (EFER)"). LMA is the processor's.
///
/// # Errors
/// A reserved bit is set, or LME changes while paging is enabled.
pub fn write_efer(value: u64) -> Result<(), GeneralProtection> {
    let old = efer();
    if value & !EFER != 0 || (value ^ old) & LME != 0 && state::read(Field::GUEST_CR0) & PG != 0 {
        return Err(GeneralProtection);
    }
    state::write(Field::GUEST_EFER, value & !LMA | old & LMA);
    if (value ^ old) & NXE != 0 {
        state::invalidate_translations();
    }
    Ok(())
}
