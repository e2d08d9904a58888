//! Rare exits.

use stile_ledger::RowId;
use stile_ledger::aarch64::{self as rows, reason};

use stile_sysreg::syndrome::{Esr, aarch32};

use super::data_abort;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::arch::aarch64::vcpu::inject;
use crate::arch::aarch64::vcpu::loaded::Parts;
use crate::cpu::Outcome;

/// Handles exception classes without a stub of their own (Arm ARM, ESR_EL2, EC).
#[unsafe(no_mangle)]
pub extern "C" fn handle_other(cpu: &mut Cpu, esr: u64) -> Outcome {
    let class = (esr >> 26 & 0x3f) as u32;
    let row = match class {
        // Instruction Abort from a lower Exception level: a fetch from unmapped or untouched memory.
        0x20 => {
            return data_abort::touch_or_refuse(cpu, Esr(esr), data_abort::faulting_ipa());
        }
        0x03 | 0x04 | 0x05 | 0x06 | 0x08 | 0x0c | 0x11 | 0x12 | 0x13 => {
            let row = cpu.loaded().ledger().row_for(reason::AARCH32, class);
            if aarch32::condition_fails(Esr(esr), read_sysreg!(SPSR_EL2)) {
                return Outcome::done(row);
            }
            row
        }
        // Access to FP, SIMD and SVE registers by a vCPU that shares its CPU.
        0x07 => return grant_fp(cpu, esr, reason::FP.other()),
        0x19 => return grant_fp(cpu, esr, reason::SVE.other()),
        0x1d => reason::SME.other(),
        // An instruction that uses a pointer-authentication key, for the first time.
        0x09 if grant_keys(cpu) => return Outcome::again(reason::PAUTH.other()),
        0x09 | 0x1c => reason::PAUTH.other(),
        0x0e => reason::ILLEGAL.other(),
        0x1a => reason::NESTED.other(),
        0x30 => rows::DEBUG_BREAKPOINT,
        0x32 => rows::DEBUG_STEP,
        0x34 => rows::DEBUG_WATCHPOINT,
        0x38 | 0x3c => rows::DEBUG_BRK,
        _ => cpu.loaded().ledger().row_for(reason::UNKNOWN, class),
    };
    // Instructions of features that the guest's ID registers hide.
    inject::undefined(Esr(esr));
    Outcome::again(row)
}

fn grant_fp(cpu: &mut Cpu, esr: u64, row: RowId) -> Outcome {
    let Parts { context, fp_trapped, .. } = cpu.parts();
    if !context.fp.grant(fp_trapped) {
        inject::undefined(Esr(esr));
    }
    Outcome::again(row)
}

/// Grants the pointer-authentication keys to the loaded vCPU, which then retries. Returns false if it has them.
pub(super) fn grant_keys(cpu: &mut Cpu) -> bool {
    let Parts { context, keys_trapped, .. } = cpu.parts();
    context.keys.grant(keys_trapped)
}

/// All physical interrupts are in group 1: an FIQ is spurious.
#[unsafe(no_mangle)]
extern "C" fn handle_fiq(_cpu: &mut Cpu, _esr: u64) -> Outcome {
    Outcome::again(reason::FIQ.other())
}
