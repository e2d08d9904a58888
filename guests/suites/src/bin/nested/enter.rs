//! Entering and leaving L2: registers, exception levels, L2's own exceptions, illegal returns.

use payload::harness::Test;
use payload::prelude::*;
use payload::probe;

use crate::guest::{self, EL0T, EL1H, Exit, Guest, SCTLR, code};
use crate::stage2::Stage2;

pub const TESTS: &[Test] = payload::tests![
    hypercall,
    keeps_registers,
    own_registers,
    levels,
    own_exceptions,
    injected,
    injected_serror,
    serror_is_taken_once,
    injected_for_nobody,
    firmware_call,
    disabled_calls,
    illegal_returns,
    signed_returns,
    own_calls,
];

/// An L2 with its own second stage.
pub fn guest() -> Guest {
    Guest::new(Stage2::new(1))
}

/// L2 reached the end of its code.
pub fn check_end(exit: Exit) -> Outcome {
    check!(exit.hvc() == Some(0), "{exit:x?}, expected the end");
    Ok(())
}

/// L2 took an exception to its own EL1, by this vector.
pub fn check_own(exit: Exit, vector: u64, when: &str) -> Outcome {
    check!(exit.own_vector() == Some(vector), "{when}: {exit:x?}, expected L2's vector {vector}");
    Ok(())
}

/// HVC is taken to EL2, with its immediate and the address of the next instruction.
fn hypercall() -> Outcome {
    let mut guest = guest();
    let exit = guest.run(code!("hvc #0x1234"));
    check_eq!(exit.esr, 0x16 << 26 | 1 << 25 | 0x1234, "ESR_EL2");
    check_eq!(exit.vector, guest::SYNCHRONOUS, "vector");
    check_eq!(guest.pc, guest::CODE + 4, "ELR_EL2");
    check_eq!(guest.pstate & 0xFFF, EL1H, "SPSR_EL2");
    check_end(guest.resume())
}

/// General registers survive the way in and out.
fn keeps_registers() -> Outcome {
    let mut guest = guest();
    guest.x = probe::pattern(1);
    check_end(guest.run(code!("hvc #1"))).err();
    check!(guest.x == probe::pattern(1), "a register changed on the way in and out");
    guest.x = probe::pattern(2);
    check_end(guest.resume())?;
    check!(guest.x == probe::pattern(2), "a register changed on the second way");
    Ok(())
}

/// Each level has its own EL1 registers; L1 accesses L2's by the `_EL12` names.
fn own_registers() -> Outcome {
    let mut guest = guest();
    let own = [mrs!("TTBR0_EL1"), mrs!("VBAR_EL1"), mrs!("TPIDR_EL2")];
    msr!("S3_5_C13_C0_1", 0x1234); // CONTEXTIDR_EL12
    msr!("S3_5_C2_C0_0", 0x5000); // TTBR0_EL12
    check_end(guest.run(code!(
        "mrs x0, CONTEXTIDR_EL1",
        "mrs x1, TTBR0_EL1",
        "mov x2, #0x6000",
        "msr TTBR1_EL1, x2",
        "msr TPIDR_EL1, x2",
        "msr FAR_EL1, x2",
        "mov x3, #0x77",
        "msr TPIDR_EL0, x3",
        "mrs x4, SP_EL0",
    )))?;
    check_eq!(guest.x[0], 0x1234, "L2's CONTEXTIDR_EL1");
    check_eq!(guest.x[1], 0x5000, "L2's TTBR0_EL1");
    check_eq!(mrs!("S3_5_C2_C0_1"), 0x6000, "TTBR1_EL12");
    check_eq!(mrs!("TPIDR_EL1"), 0x6000, "TPIDR_EL1");
    check_eq!(mrs!("S3_5_C6_C0_0"), 0x6000, "FAR_EL12");
    check_eq!(mrs!("TPIDR_EL0"), 0x77, "TPIDR_EL0");
    check!(own == [mrs!("TTBR0_EL1"), mrs!("VBAR_EL1"), mrs!("TPIDR_EL2")], "a register of EL2 changed");
    Ok(())
}

/// L2 runs at EL1 or EL0 according to SPSR_EL2; HVC is undefined at EL0.
fn levels() -> Outcome {
    let mut guest = guest();
    check_end(guest.run(code!("mrs x0, CurrentEL")))?;
    check_eq!(guest.x[0], 1 << 2, "CurrentEL");
    let exit = guest.run_at(EL0T, code!("hvc #5"));
    check!(exit.own_vector() == Some(8), "HVC at EL0: {exit:x?}");
    check_eq!(mrs!("S3_5_C4_C0_0") & 0xF, 0, "SPSR_EL12.M");
    check_eq!(mrs!("S3_5_C4_C0_1"), guest::CODE, "ELR_EL12");
    check_eq!(mrs!("S3_5_C5_C2_0"), 1 << 25, "ESR_EL12");
    Ok(())
}

/// L2's exceptions to its own EL1 are not taken to EL2.
fn own_exceptions() -> Outcome {
    let mut guest = guest();
    let exit = guest.run(code!("svc #7"));
    check!(exit.own_vector() == Some(4), "SVC at EL1: {exit:x?}");
    check_eq!(mrs!("S3_5_C5_C2_0"), 0x15 << 26 | 1 << 25 | 7, "ESR_EL12");
    let exit = guest.run_at(EL0T, code!("svc #8"));
    check!(exit.own_vector() == Some(8), "SVC at EL0: {exit:x?}");
    // And back by L2's own ERET.
    msr!("S3_5_C4_C0_0", EL1H);
    msr!("S3_5_C4_C0_1", guest::CODE + 4);
    check_end(guest.run(code!("eret", "mrs x0, CurrentEL")))?;
    check_eq!(guest.x[0], 1 << 2, "CurrentEL");
    Ok(())
}

/// L1 puts an exception into L2, as a hypervisor does: by L2's registers and the vector's address.
fn injected() -> Outcome {
    let mut guest = guest();
    check!(guest.run(code!("hvc #1")).hvc() == Some(1), "the first HVC");
    msr!("S3_5_C4_C0_1", guest.pc); // ELR_EL12, SPSR_EL12, ESR_EL12
    msr!("S3_5_C4_C0_0", guest.pstate);
    msr!("S3_5_C5_C2_0", 1 << 25);
    guest.pc = mrs!("S3_5_C12_C0_0") + 0x200;
    let exit = guest.resume();
    check!(exit.own_vector() == Some(4), "{exit:x?}");
    check_eq!(mrs!("S3_5_C4_C0_1"), guest::CODE + 4, "ELR_EL12");
    Ok(())
}

/// HCR_EL2.VSE is taken once, when L2 unmasks it.
fn injected_serror() -> Outcome {
    const VSE: u64 = 1 << 8;
    let mut guest = guest();
    guest.hcr |= VSE;
    let exit = guest.run(code!("nop", "msr DAIFClr, #4", "isb", "nop"));
    check!(exit.own_vector() == Some(7), "{exit:x?}");
    Ok(())
}

/// L2 takes HCR_EL2.VSE once, however often its CPU was another's in between.
fn serror_is_taken_once() -> Outcome {
    let mut guest = guest();
    guest.hcr |= 1 << 8;
    // L2's vector of SErrors is at 0x380 of its code: it counts them, unmasks them, and waits for longer than a slice.
    msr!("S3_5_C12_C0_0", guest::CODE); // VBAR_EL12
    guest.x[3] = wait::frequency() / 50;
    let exit = guest.run(code!(
        "mov x0, #0",
        "msr DAIFClr, #4",
        "isb",
        "nop",
        "hvc #2",
        ".fill 219, 4, 0xd503201f",
        "add x0, x0, #1",
        "msr DAIFClr, #4",
        "mrs x1, CNTVCT_EL0",
        "add x1, x1, x3",
        "780:",
        "isb",
        "mrs x2, CNTVCT_EL0",
        "cmp x2, x1",
        "b.lo 780b",
        "hvc #3",
    ));
    check!(exit.hvc() == Some(3), "{exit:x?}");
    check_eq!(guest.x[0], 1, "SErrors");
    Ok(())
}

/// HCR_EL2.{VSE, VI, VF} without AMO, IMO and FMO have no effect, and stay set.
fn injected_for_nobody() -> Outcome {
    let mut guest = guest();
    // IMO stays set: otherwise a physical interrupt would be L2's.
    for (routed, injected) in [(1 << 5, 1 << 8), (1 << 3, 1 << 6)] {
        guest.hcr = guest::HCR & !routed | injected;
        check_end(guest.run(code!("nop", "msr DAIFClr, #5", "isb", "nop")))?;
        guest.hcr = guest::HCR | injected;
        check!(guest.run(code!("msr DAIFClr, #5", "isb", "nop")).own_vector().is_some(), "{injected:#x} does nothing at all");
    }
    Ok(())
}

/// HCR_EL2.TSC: an SMC of L2 is taken to EL2, with its own address in ELR_EL2.
fn firmware_call() -> Outcome {
    let mut guest = guest();
    guest.hcr |= 1 << 19;
    let exit = guest.run(code!("smc #3"));
    check_eq!(exit.esr, 0x17 << 26 | 1 << 25 | 3, "ESR_EL2");
    check_eq!(guest.pc, guest::CODE, "ELR_EL2");
    check_end(guest.skip())
}

/// HCR_EL2.HCD: HVC is undefined, in L2 and at EL2.
fn disabled_calls() -> Outcome {
    const HCD: u64 = 1 << 29;
    let mut guest = guest();
    // L2's vectors are behind its entry, and call EL2 by SMC.
    msr!("S3_5_C12_C0_0", guest::CODE); // VBAR_EL12
    guest.hcr |= HCD | 1 << 19;
    let exit = guest.run(code!("hvc #1", ".fill 127, 4, 0xd503201f", "smc #5"));
    check_eq!(exit.esr, 0x17 << 26 | 1 << 25 | 5, "ESR_EL2");
    check_eq!(guest.pc, guest::CODE + 0x200, "ELR_EL2");
    check_eq!(mrs!("S3_5_C4_C0_1"), guest::CODE, "ELR_EL12");
    check_eq!(mrs!("S3_5_C5_C2_0"), 1 << 25, "ESR_EL12");
    let mut guest = Guest::bare();
    guest.hcr = payload::entry::HCR | HCD;
    let code = code!("hvc #9");
    guest.pc = code.as_ptr() as u64;
    guest.pstate = 0x3C9;
    let exit = guest.resume();
    check_eq!(exit.vector, 4, "vector");
    check_eq!(exit.esr, 1 << 25, "ESR_EL2");
    check_eq!(guest.pc, code.as_ptr() as u64, "ELR_EL2");
    Ok(())
}

/// ERETAA and ERETAB authenticate ELR_EL2 by key and stack pointer, if SCTLR_EL2 enables the key.
fn signed_returns() -> Outcome {
    const LEVELS: u64 = 0xff0;
    if mrs!("ID_AA64ISAR1_EL1") & LEVELS == 0 && mrs!("S3_0_C0_C6_2") >> 12 & 0xf == 0 {
        skip!("no FEAT_PAuth");
    }
    // PACIA and PACIB of x8 by x9; ERETAA and ERETAB.
    let by_a = code!(
        "mov x9, sp",
        "adr x8, 772f",
        ".inst 0xdac10128",
        "eor x8, x8, x0",
        "msr ELR_EL2, x8",
        "msr SPSR_EL2, x1",
        "isb",
        ".inst 0xd69f0bff",
        "mov x2, #1",
        "772: nop"
    );
    let by_b = code!(
        "mov x9, sp",
        "adr x8, 772f",
        ".inst 0xdac10528",
        "eor x8, x8, x0",
        "msr ELR_EL2, x8",
        "msr SPSR_EL2, x1",
        "isb",
        ".inst 0xd69f0fff",
        "mov x2, #1",
        "772: nop"
    );
    let sctlr = mrs!("SCTLR_EL2");
    // APIAKey and APIBKey.
    msr!("S3_0_C2_C1_0", payload::random::mix(1));
    msr!("S3_0_C2_C1_1", payload::random::mix(2));
    msr!("S3_0_C2_C1_2", payload::random::mix(3));
    msr!("S3_0_C2_C1_3", payload::random::mix(4));
    for (enable, code) in [(1 << 31, by_a), (1 << 30, by_b)] {
        for (enabled, flipped, fails) in [(true, 0, false), (true, 1 << 54, true), (true, 1 << 60, true), (false, 0, false)] {
            msr!("SCTLR_EL2", if enabled { sctlr | enable } else { sctlr & !enable });
            payload::instruction!("isb");
            let mut x = [0; 31];
            x[..2].copy_from_slice(&[flipped, 0x3c9]);
            // Without the HVC at its end.
            let fault = probe::run(&code[..code.len() - 1], &mut x);
            msr!("SCTLR_EL2", sctlr);
            payload::instruction!("isb");
            check!(fault.is_some() == fails, "enabled {enabled}, flipped {flipped:#x}: {fault:x?}");
            check!(fails || x[2] == 0, "the return went to the next instruction");
        }
    }
    Ok(())
}

/// A return to a reserved or higher level: EL2 continues at ELR_EL2, and takes an exception at once.
fn illegal_returns() -> Outcome {
    // EL3, a reserved mode, EL1 while HCR_EL2.TGE is 1, AArch32 modes above EL0's.
    let tge = guest::HCR | guest::TGE;
    for (pstate, hcr) in [(0xD, guest::HCR), (0x2, guest::HCR), (5, tge), (4, tge), (0x1A, guest::HCR), (0x1F, guest::HCR)] {
        let mut guest = guest();
        guest.hcr = hcr;
        // EL2 can fetch from the return address.
        let here = code!("nop").as_ptr() as u64;
        (guest.pc, guest.pstate) = (here, 0x3C0 | pstate);
        let exit = guest.resume();
        check_eq!(exit.vector, 4, "the vector of an illegal return to {pstate:#x}");
        check_eq!(exit.esr, 0x0E << 26 | 1 << 25, "ESR_EL2 of an illegal return to {pstate:#x}");
        check_eq!(guest.pc, here, "ELR_EL2");
        check_eq!(guest.pstate & 0x10_001F, 0x10_0009, "SPSR_EL2.{{IL, M}}");
    }
    Ok(())
}

/// EL2's own HVC, and HVC of its host's EL0, which is undefined.
fn own_calls() -> Outcome {
    let mut guest = Guest::bare();
    guest.hcr = payload::entry::HCR;
    // At EL2 code is identity-mapped.
    let code = code!("hvc #9");
    guest.pc = code.as_ptr() as u64;
    guest.pstate = 0x3C9;
    let exit = guest.resume();
    check_eq!(exit.vector, 4, "vector");
    check_eq!(exit.esr, 0x16 << 26 | 1 << 25 | 9, "ESR_EL2");
    check_eq!(guest.pstate & 0x1F, 9, "SPSR_EL2.M");
    check_eq!(mrs!("S3_5_C1_C0_0"), SCTLR, "SCTLR_EL12");
    Ok(())
}
