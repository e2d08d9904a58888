//! Exceptions taken to virtual EL2.

use stile_nested_arm::inject::{Context, El2, Entry, Kind};

use super::state::{Nested, Regime};
use super::switch;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// Takes an exception to virtual EL2, from there or from its guest. For synchronous exceptions: `esr`, and FAR_EL2 if
/// the exception has one.
pub fn take(cpu: &mut Cpu, nested: &mut Nested, kind: Kind, esr: Option<u64>, far: Option<u64>) {
    let (pc, pstate) = (read_sysreg!(ELR_EL2), read_sysreg!(SPSR_EL2));
    let context = match nested.regime {
        Regime::Guest => Context::Guest,
        Regime::El2 if pstate & 0xf == 0 => Context::HostEl0,
        Regime::El2 => Context::El2,
    };
    if context == Context::Guest {
        switch::leave_guest(cpu, nested);
    }
    let el2 = El2 { vbar: read_sysreg!(VBAR_EL12), sctlr: read_sysreg!(SCTLR_EL12), hcr: nested.hcr() };
    let entry = Entry::take(kind, pstate, context, &el2);
    write_sysreg!(SPSR_EL12, entry.spsr);
    write_sysreg!(ELR_EL12, pc);
    if let Some(esr) = esr {
        write_sysreg!(ESR_EL12, esr);
    }
    if let Some(far) = far {
        write_sysreg!(FAR_EL12, far);
    }
    write_sysreg!(ELR_EL2, entry.pc);
    write_sysreg!(SPSR_EL2, entry.pstate);
}
