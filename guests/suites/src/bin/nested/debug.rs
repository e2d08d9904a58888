//! L1's debugger of itself.

use payload::harness::Test;
use payload::prelude::*;

use crate::enter::{check_end, guest};
use crate::guest::{Guest, code};

pub const TESTS: &[Test] = payload::tests![own_breakpoint, own_step, own_steps, step_of_return, not_by_l2];

/// MDSCR_EL1.{SS, KDE, MDE}.
const SS: u64 = 1;
const KDE: u64 = 1 << 13;
const MDE: u64 = 1 << 15;
/// SPSR_EL2: EL2h, all but debug exceptions masked; these masked, too; SS.
const EL2H: u64 = 0x1C9;
const MASKED: u64 = 1 << 9;
const STEP: u64 = 1 << 21;

/// Restores the state that these tests change.
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

/// MDSCR_EL1 takes effect at L1's next exception return at the latest: a breakpoint in its own code.
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

/// L1 single-steps its own code.
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

/// A debugger of EL2's own code, without an exception return between its write of MDSCR_EL1 and the code:
/// each instruction is one step, executed or emulated.
fn own_steps() -> Outcome {
    let code = code!(
        "msr MDSCR_EL1, x0",
        "isb",
        "msr DAIFClr, #8",
        "nop",
        "mrs x1, MIDR_EL1",
        "mrs x2, ID_AA64PFR0_EL1",
        "mrs x3, S3_4_C14_C1_0", // CNTHCTL_EL2
        "msr S3_4_C14_C1_0, x3",
        "tlbi vaale1is, x4",
        "mov x5, #1",
    );
    // Writes of 0 in between must not affect precision.
    for _ in 0..3 {
        let mut guest = at_el2(code, EL2H | MASKED);
        let start = guest.pc;
        guest.x[0] = SS | KDE;
        for instruction in 3..10 {
            let exit = guest.resume();
            check!(exit.vector == 4 && exit.class() == 0x33, "instruction {instruction}: {exit:x?}");
            check_eq!(guest.pc, start + 4 * instruction, "ELR_EL2");
            check_eq!(guest.pstate & STEP, 0, "SPSR_EL2.SS");
            guest.pstate |= STEP;
        }
        msr!("MDSCR_EL1", 0);
        let exit = guest.resume();
        check!(exit.vector == 4 && exit.class() == 0x16, "the end: {exit:x?}");
        for _ in 0..5 {
            msr!("MDSCR_EL1", 0);
        }
    }
    Ok(())
}

/// An exception return of EL2 itself is one step, too: it clears PSTATE.SS for any value of SPSR_EL2.
fn step_of_return() -> Outcome {
    // ELR_EL2 and SPSR_EL2 are those of the entry.
    let code = code!("eret");
    let mut guest = at_el2(code, EL2H | STEP);
    msr!("MDSCR_EL1", SS | KDE);
    let exit = guest.resume();
    msr!("MDSCR_EL1", 0);
    check!(exit.vector == 4 && exit.class() == 0x33, "vector and EC: {exit:x?}");
    check_eq!(guest.pc, code.as_ptr() as u64, "ELR_EL2");
    Ok(())
}

/// L2 leaves MDSCR_EL1 with a step in it. L1 writes its own before it takes debug exceptions, as hypervisors do.
fn not_by_l2() -> Outcome {
    for value in [SS | KDE, SS | KDE | MDE] {
        for _ in 0..10 {
            let mut guest = guest();
            guest.x[0] = value;
            check_end(guest.run(code!("msr MDSCR_EL1, x0", "isb")))?;
            check_eq!(mrs!("MDSCR_EL1"), value, "L2's MDSCR_EL1");
            msr!("MDSCR_EL1", 0);
            payload::instruction!("isb");
            payload::instruction!("msr DAIFClr, #8");
            payload::instruction!("nop");
            payload::instruction!("msr DAIFSet, #8");
        }
    }
    Ok(())
}
