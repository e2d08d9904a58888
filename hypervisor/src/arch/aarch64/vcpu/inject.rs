//! Synchronous exceptions injected into EL1.

use stile_nested_arm::inject::to_virtual;
use stile_sysreg::injection::{El1Entry, origin};
use stile_sysreg::syndrome::{Ec, Esr, external_data_abort, external_instruction_abort};

use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::nested::regime::at_virtual_el2;

macro_rules! el1 {
    (read $vhe:ident, $plain:ident) => {
        if features::get().vhe { read_sysreg!($vhe) } else { read_sysreg!($plain) }
    };
    (write $vhe:ident, $plain:ident, $value:expr) => {
        if features::get().vhe { write_sysreg!($vhe, $value) } else { write_sysreg!($plain, $value) }
    };
}

/// Vector offset and SPSR of a synchronous exception from the loaded vCPU's current state.
fn entry(spsr: u64) -> El1Entry {
    El1Entry::synchronous(spsr, el1!(read SCTLR_EL12, SCTLR_EL1), el1!(read VBAR_EL12, VBAR_EL1))
}

/// Address of the guest's vector for a synchronous exception from its current state.
pub fn synchronous_vector() -> u64 {
    entry(read_sysreg!(SPSR_EL2)).pc
}

/// Injects a synchronous exception into EL1 at the current instruction.
fn take(esr: u64, far: Option<u64>) {
    let spsr = read_sysreg!(SPSR_EL2);
    let entry = entry(spsr);
    // At virtual EL2 the exception is taken from there.
    let saved = if at_virtual_el2() { to_virtual(spsr) } else { spsr };
    el1!(write SPSR_EL12, SPSR_EL1, saved);
    el1!(write ELR_EL12, ELR_EL1, read_sysreg!(ELR_EL2));
    el1!(write ESR_EL12, ESR_EL1, esr);
    if let Some(far) = far {
        el1!(write FAR_EL12, FAR_EL1, far);
    }
    write_sysreg!(SPSR_EL2, entry.pstate);
    write_sysreg!(ELR_EL2, entry.pc);
}

/// Injects an Undefined Instruction exception for a trapped instruction with this syndrome.
pub fn undefined(esr: Esr) {
    take(stile_sysreg::syndrome::undefined(esr.il()), None);
}

/// Injects an Undefined Instruction exception for an HVC that was taken to EL2: ELR_EL2 is behind it.
pub fn undefined_hvc(esr: Esr) {
    write_sysreg!(ELR_EL2, read_sysreg!(ELR_EL2).wrapping_sub(4));
    undefined(esr);
}

/// Injects an exception that EL1 would have taken without Stile, with its syndrome.
pub fn same(esr: Esr) {
    take(esr.0, None);
}

/// Injects a synchronous external abort for an access or fetch with this syndrome.
pub fn external_abort(esr: Esr, far: u64) {
    let origin = origin(read_sysreg!(SPSR_EL2));
    let syndrome = if esr.ec() == Ec::INSTRUCTION_ABORT_LOWER {
        external_instruction_abort(origin)
    } else {
        external_data_abort(origin, esr.data_abort().wnr())
    };
    take(syndrome, Some(far));
}
