//! Forwarding of L2's exits: whether L1's virtual EL2 controls would have trapped them to L1.
//!
//! L0 traps more than L1 requested, and the processor has only one set of controls. So each exit of L2 is
//! checked against L1's controls: [`verdict`] dispatches on the exception class, and for a system register or
//! instruction looks up its row in [`ROWS`]. A row names the controls that trap the register, as in the
//! register's accessor pseudocode in the Arm ARM, and its bit in the fine-grained trap registers
//! ("Fine-grained traps").

use stile_sysreg::SysReg;
use stile_sysreg::syndrome::{Ec, Esr, WfKind};

mod aarch32;
mod control;
mod debug;
mod instructions;
mod masks;
mod registers;
mod row;
mod table;
#[cfg(test)]
mod tests;
pub mod trap;
mod virtual_controls;

pub use control::{Control, Controls};
pub use masks::Masks;
pub use row::{Fine, FineGroup, Row};
pub use table::{ROWS, row};
pub use virtual_controls::Virtual;

use trap::Trap;

/// The exception level of L2 from which the exit came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// EL0.
    El0,
    /// EL1.
    El1,
}

/// The handling of an L2 exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forwarded: an exception to L1's virtual EL2, with the exit's syndrome.
    Forward,
    /// L1 doesn't trap it: L0 handles it as for an ordinary guest.
    Keep,
    /// L1's controls make the instruction undefined: L2 takes the exception at its EL1.
    Undefined,
    /// A second-stage abort: L1's tables must be walked.
    SecondStage,
}

impl Verdict {
    const fn forward_if(condition: bool) -> Self {
        if condition { Self::Forward } else { Self::Keep }
    }
}

/// Decides the handling of a synchronous exit of L2 with syndrome `esr`.
///
/// Only for exits of L2: virtual EL2 itself, and L1's EL0 under HCR_EL2.{E2H, TGE} = {1, 1}, are not subject
/// to these controls.
pub fn verdict(esr: Esr, from: Level, controls: &impl Controls) -> Verdict {
    let any = |traps: &[Trap]| Verdict::forward_if(traps.iter().any(|trap| trap.holds(controls)));
    match esr.ec() {
        Ec::DATA_ABORT_LOWER | Ec::INSTRUCTION_ABORT_LOWER => Verdict::SecondStage,
        Ec::MSR => system(esr.msr().reg(), esr.msr().is_read(), controls),
        Ec::HVC64 | Ec::HVC32 if trap::HCD.holds(controls) => Verdict::Undefined,
        Ec::HVC64 | Ec::HVC32 => Verdict::Forward,
        Ec::WFX => any(match esr.wfx().kind() {
            WfKind::Wfi | WfKind::Wfit => &[trap::TWI],
            WfKind::Wfe | WfKind::Wfet => &[trap::TWE],
        }),
        // L1 has no EL3: an SMC that it doesn't trap is undefined.
        Ec::SMC64 | Ec::SMC32 if !trap::TSC.holds(controls) => Verdict::Undefined,
        Ec::SMC64 | Ec::SMC32 => Verdict::Forward,
        Ec::FP => any(&[trap::FPEN]),
        Ec::SVE => any(&[trap::ZEN]),
        Ec::SME => any(&[trap::SMEN]),
        Ec::PAUTH => any(&[trap::API]),
        Ec::ERET => any(&[trap::NV, trap::FINE_ERET]),
        Ec::SVC64 | Ec::SVC32 => any(match from {
            Level::El0 => &[trap::FINE_SVC_EL0],
            Level::El1 => &[trap::FINE_SVC_EL1],
        }),
        Ec::MOPS => any(&[trap::MCE2]),
        Ec::BREAKPOINT_LOWER | Ec::STEP_LOWER | Ec::WATCHPOINT_LOWER | Ec::BRK64 | Ec::BKPT32 | Ec::VECTOR_CATCH32 => any(&[trap::TDE]),
        Ec::CP15_MCR | Ec::CP15_MCRR | Ec::CP14_MCR | Ec::CP14_MRRC | Ec::CP14_LDC | Ec::VMRS => {
            Verdict::forward_if(aarch32::is_trapped(esr, controls))
        }
        // All other exits are for L0's own purposes.
        _ => Verdict::Keep,
    }
}

/// Decides on an access to a system register, or a system instruction.
fn system(reg: SysReg, is_read: bool, controls: &impl Controls) -> Verdict {
    let Some(row) = row(reg) else {
        return Verdict::Keep;
    };
    let fine = row.fine.is_some_and(|fine| fine.holds(is_read, table::is_no_xs(reg), controls));
    Verdict::forward_if(fine || row.coarse.iter().any(|trap| trap.covers(is_read) && trap.holds(controls)))
}
