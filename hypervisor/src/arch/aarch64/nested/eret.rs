//! ERET at virtual EL2, where it is not the fast kind that `exit.S` answers; and exceptions taken to virtual EL2.

use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_nested::inject::{self, Context, El2, Entry, EretKind, Kind};
use stile_sysreg::syndrome::Esr;

use super::{Nested, Regime, debug, switch};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// SPSR_EL2.IL: the next instruction takes an illegal-state exception.
const IL: u64 = 1 << 20;
/// SPSR_EL2.SS: an instruction is to be stepped.
const SS: u64 = 1 << 21;

/// ERET, ERETAA or ERETAB of the loaded vCPU at virtual EL2.
pub fn eret(cpu: &mut Cpu, nested: &mut Nested, esr: Esr) -> RowId {
    // What L1 calls SPSR_EL2 and ELR_EL2 are EL1's registers.
    let (spsr, elr) = (read_sysreg!(SPSR_EL12), read_sysreg!(ELR_EL12));
    let pstate = read_sysreg!(SPSR_EL2);
    let to = inject::eret(spsr, pstate, nested.hcr(), true);
    write_sysreg!(ELR_EL2, authenticated(inject::eret_kind(esr), elr));
    write_sysreg!(SPSR_EL2, to.pstate);
    match to.to {
        Context::El2 if to.pstate & IL != 0 => rows::NESTED_ERET_ILLEGAL,
        Context::El2 | Context::HostEl0 => {
            if to.pstate & SS != 0 && debug::is_enabled(pstate) {
                // The step of this instruction is over: Arm ARM pseudocode, DebugExceptionReturnSS.
                write_sysreg!(SPSR_EL2, to.pstate & !SS);
            }
            nested.load_mdscr();
            if to.to == Context::El2 { rows::NESTED_ERET_KERNEL } else { rows::NESTED_ERET_USER }
        }
        Context::Guest => {
            switch::enter_guest(cpu, nested);
            rows::NESTED_ERET_GUEST
        }
    }
}

/// The return address of ERETAA and ERETAB, whose keys are L1's, on the CPU: SP is virtual EL2's, EL1's.
fn authenticated(kind: EretKind, elr: u64) -> u64 {
    let sp = read_sysreg!(SP_EL1);
    let mut address = elr;
    match kind {
        EretKind::Plain => {}
        // SAFETY: arithmetic on two registers.
        EretKind::KeyA => unsafe {
            core::arch::asm!(".arch_extension pauth", "autia {}, {}", inout(reg) address, in(reg) sp, options(nomem, nostack, preserves_flags))
        },
        // SAFETY: as above.
        EretKind::KeyB => unsafe {
            core::arch::asm!(".arch_extension pauth", "autib {}, {}", inout(reg) address, in(reg) sp, options(nomem, nostack, preserves_flags))
        },
    }
    address
}

/// The loaded vCPU, at virtual EL2 or in its guest, takes an exception to virtual EL2. For synchronous ones: `esr`, and FAR_EL2 if
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
