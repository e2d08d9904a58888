//! L1's debugger of itself.

use payload::harness::Test;
use payload::prelude::*;

use crate::guest::{Guest, code};

pub const TESTS: &[Test] = payload::tests![own_breakpoint, own_step];

/// MDSCR_EL1.{SS, KDE, MDE}.
const SS: u64 = 1;
const KDE: u64 = 1 << 13;
const MDE: u64 = 1 << 15;
/// SPSR_EL2: EL2h, all but debug exceptions masked; SS.
const EL2H: u64 = 0x1C9;
const STEP: u64 = 1 << 21;

/// Takes what these tests change back.
pub fn restore() {
    msr!("MDSCR_EL1", 0);
    msr!("S2_0_C0_C0_5", 0); // DBGBCR0_EL1
    payload::instruction!("isb");
}

/// `code` at EL2 itself.
fn at_el2(code: &[u32], pstate: u64) -> Guest {
    msr!("S2_0_C1_C0_4", 0); // OSLAR_EL1
    let mut guest = Guest::bare();
    guest.hcr = payload::entry::HCR;
    (guest.pc, guest.pstate) = (code.as_ptr() as u64, pstate);
    guest
}

/// MDSCR_EL1 holds from L1's next exception return on, if not before: a breakpoint in its own code.
fn own_breakpoint() -> Outcome {
    let code = code!("nop", "nop");
    let mut guest = at_el2(code, EL2H);
    msr!("S2_0_C0_C0_4", guest.pc + 4); // DBGBVR0_EL1
    msr!("S2_0_C0_C0_5", 1 << 13 | 0xF << 5 | 1 << 1 | 1); // HMC, BAS, PMC, E: at EL2 and EL1
    msr!("MDSCR_EL1", MDE | KDE);
    let exit = guest.resume();
    msr!("MDSCR_EL1", 0);
    check!(exit.vector == 4 && exit.class() == 0x31, "vector and EC: {exit:x?}");
    check_eq!(guest.pc, code.as_ptr() as u64 + 4, "ELR_EL2");
    Ok(())
}

/// A single step of its own code.
fn own_step() -> Outcome {
    let code = code!("nop", "nop");
    let mut guest = at_el2(code, EL2H | STEP);
    msr!("MDSCR_EL1", SS | KDE | MDE);
    let exit = guest.resume();
    msr!("MDSCR_EL1", 0);
    check!(exit.vector == 4 && exit.class() == 0x33, "vector and EC: {exit:x?}");
    check_eq!(guest.pc, code.as_ptr() as u64 + 4, "ELR_EL2");
    Ok(())
}
