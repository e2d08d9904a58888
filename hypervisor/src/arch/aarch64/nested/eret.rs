//! ERET at virtual EL2 outside the fast path of `exit.S`.

use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_nested_arm::inject::{self, Context, Kind};
use stile_nested_arm::pauth::Authenticated;
use stile_sysreg::syndrome::Esr;

use super::state::Nested;
use super::{authenticate, debug, exception, serror, switch};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// SPSR_EL2.IL: the next instruction takes an Illegal Execution state exception.
const IL: u64 = 1 << 20;
/// SPSR_EL2.SS: single step.
const SS: u64 = 1 << 21;

/// Handles ERET, ERETAA or ERETAB of the loaded vCPU at virtual EL2.
pub fn eret(cpu: &mut Cpu, nested: &mut Nested, esr: Esr) -> RowId {
    // EL1's registers hold L1's SPSR_EL2 and ELR_EL2.
    let (spsr, elr) = (read_sysreg!(SPSR_EL12), read_sysreg!(ELR_EL12));
    let pstate = read_sysreg!(SPSR_EL2);
    let elr = match authenticate::return_address(inject::eret_kind(esr), elr, pstate) {
        Authenticated::Address(elr) => elr,
        Authenticated::Fails(syndrome) => {
            exception::take(cpu, nested, Kind::Synchronous, Some(syndrome), None);
            return rows::NESTED_ERET_ILLEGAL;
        }
    };
    let to = inject::eret(spsr, pstate, nested.hcr(), features::get().aarch32_el0);
    write_sysreg!(ELR_EL2, elr);
    write_sysreg!(SPSR_EL2, to.pstate);
    match to.to {
        Context::El2 if to.pstate & IL != 0 => rows::NESTED_ERET_ILLEGAL,
        Context::El2 | Context::HostEl0 => {
            if to.pstate & SS != 0 && debug::is_enabled(pstate) {
                // This instruction's step is complete: Arm ARM pseudocode, DebugExceptionReturnSS.
                write_sysreg!(SPSR_EL2, to.pstate & !SS);
            }
            nested.load_mdscr();
            if to.to == Context::El2 { rows::NESTED_ERET_KERNEL } else { rows::NESTED_ERET_USER }
        }
        Context::Guest => {
            if switch::enter_guest(cpu, nested) {
                exception::take(cpu, nested, Kind::Irq, None, None);
            } else if nested.has_own_serror() {
                serror::take(cpu, nested);
            }
            rows::NESTED_ERET_GUEST
        }
    }
}
