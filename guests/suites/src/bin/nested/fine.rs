//! Fine-grained traps that L1 sets for L2 (FEAT_FGT), and HCRX_EL2: trapped accesses, untrapped ones, and no
//! effect on L1 itself.

use payload::encode::{NOP, Sysreg, hvc};
use payload::harness::Test;
use payload::prelude::*;

use crate::enter::{check_end, check_own, guest};
use crate::guest::{self, EL0T, EL1H, Exit, Guest, code};
use crate::traps::{EL0T32, READ_TPIDRURW, access, check_trapped};

pub const TESTS: &[Test] = payload::tests![
    fine_reads,
    fine_writes,
    fine_instructions,
    fine_no_xs,
    fine_of_programs,
    fine_calls,
    fine_returns,
    fine_absent,
    fine_not_at_el2,
    memory_copies,
    exceptions_of_copies,
];

/// HFGRTR_EL2 and HDFGRTR_EL2; HFGWTR_EL2 and HDFGWTR_EL2; HFGITR_EL2.
#[derive(Clone, Copy)]
enum Control {
    Hfgrtr,
    Hfgwtr,
    Hfgitr,
    Hdfgrtr,
    Hdfgwtr,
}
use Control::{Hdfgrtr, Hdfgwtr, Hfgitr, Hfgrtr, Hfgwtr};

impl Control {
    const ALL: [Self; 5] = [Hfgrtr, Hfgwtr, Hfgitr, Hdfgrtr, Hdfgwtr];

    fn write(self, value: u64) {
        match self {
            Hfgrtr => msr!("S3_4_C1_C1_4", value),
            Hfgwtr => msr!("S3_4_C1_C1_5", value),
            Hfgitr => msr!("S3_4_C1_C1_6", value),
            Hdfgrtr => msr!("S3_4_C3_C1_4", value),
            Hdfgwtr => msr!("S3_4_C3_C1_5", value),
        }
    }

    fn read(self) -> u64 {
        match self {
            Hfgrtr => mrs!("S3_4_C1_C1_4"),
            Hfgwtr => mrs!("S3_4_C1_C1_5"),
            Hfgitr => mrs!("S3_4_C1_C1_6"),
            Hdfgrtr => mrs!("S3_4_C3_C1_4"),
            Hdfgwtr => mrs!("S3_4_C3_C1_5"),
        }
    }
}

fn has_fine() -> bool {
    mrs!("ID_AA64MMFR0_EL1") >> 56 & 15 != 0
}

/// HCRX_EL2.MSCEn and MCE2.
const MSCEN: u64 = 1 << 11;
const MCE2: u64 = 1 << 10;

fn set_hcrx(value: u64) {
    msr!("S3_4_C1_C2_2", value);
}

fn has_copies() -> bool {
    mrs!("S3_0_C0_C6_2") >> 16 & 15 != 0 && mrs!("ID_AA64MMFR1_EL1") >> 40 & 15 != 0
}

/// Restores the state that these tests change.
pub fn restore() {
    if has_fine() {
        Control::ALL.into_iter().for_each(|control| control.write(0));
    }
    if has_copies() {
        set_hcrx(MSCEN);
    }
}

/// Anything at all.
pub fn wild(mut any: impl FnMut() -> u64) {
    if has_fine() {
        Control::ALL.into_iter().for_each(|control| control.write(any()));
    }
    if has_copies() {
        set_hcrx(any());
    }
}

macro_rules! need_fine {
    () => {
        if !has_fine() {
            skip!("no fine-grained traps");
        }
    };
}

/// An access that a bit traps: register or instruction, and L2's x5.
type Row = (Control, u32, Sysreg, u64);

/// Without the bit L2 executes the access itself, even with all other bits set; with it, the access is
/// forwarded to L1.
fn check_rows(rows: &[Row], read: bool) -> Outcome {
    for &(control, bit, register, operand) in rows {
        let mut guest = guest();
        guest.x[5] = operand;
        let exit = access(&mut guest, register, read);
        check!(exit.hvc() == Some(0), "{register} with no trap: {exit:x?}");
        control.write(1 << bit);
        check_eq!(control.read(), 1 << bit, "what was written for {register}");
        guest.x[5] = operand;
        check_trapped(&mut guest, register, read)?;
        // The register for the other direction has no effect.
        control.write(0);
        let other = match control {
            Hfgrtr => Hfgwtr,
            Hfgwtr => Hfgrtr,
            Hdfgrtr => Hdfgwtr,
            Hdfgwtr => Hdfgrtr,
            Hfgitr => continue,
        };
        other.write(1 << bit);
        guest.x[5] = operand;
        let exit = access(&mut guest, register, read);
        check!(exit.hvc() == Some(0), "{register} with the trap of the other direction: {exit:x?}");
        other.write(0);
    }
    Ok(())
}

/// HFGRTR_EL2, HDFGRTR_EL2.
fn fine_reads() -> Outcome {
    need_fine!();
    check_rows(
        &[
            (Hfgrtr, 9, Sysreg::new(3, 1, 0, 0, 0), 0),
            (Hfgrtr, 11, Sysreg::new(3, 0, 13, 0, 1), 0),
            (Hfgrtr, 12, Sysreg::new(3, 0, 1, 0, 2), 0),
            (Hfgrtr, 13, Sysreg::new(3, 2, 0, 0, 0), 0),
            (Hfgrtr, 14, Sysreg::new(3, 3, 0, 0, 1), 0),
            (Hfgrtr, 15, Sysreg::new(3, 3, 0, 0, 7), 0),
            (Hfgrtr, 18, Sysreg::new(3, 0, 12, 1, 0), 0),
            (Hfgrtr, 25, Sysreg::new(3, 0, 0, 0, 0), 0),
            (Hfgrtr, 26, Sysreg::new(3, 0, 0, 0, 5), 0),
            (Hfgrtr, 27, Sysreg::new(3, 0, 7, 4, 0), 0),
            (Hfgrtr, 29, Sysreg::new(3, 0, 1, 0, 0), 0),
            (Hfgrtr, 33, Sysreg::new(3, 0, 13, 0, 4), 0),
            (Hfgrtr, 35, Sysreg::new(3, 3, 13, 0, 2), 0),
            (Hfgrtr, 38, Sysreg::new(3, 0, 12, 0, 0), 0),
            (Hfgrtr, 39, Sysreg::new(3, 0, 12, 12, 7), 0),
            (Hdfgrtr, 1, Sysreg::new(2, 0, 0, 0, 4), 0),
            (Hdfgrtr, 4, Sysreg::new(2, 0, 0, 2, 2), 0),
            (Hdfgrtr, 9, Sysreg::new(2, 0, 1, 1, 4), 0),
        ],
        true,
    )
}

/// HFGWTR_EL2, HDFGWTR_EL2.
fn fine_writes() -> Outcome {
    need_fine!();
    check_rows(
        &[
            (Hfgwtr, 11, Sysreg::new(3, 0, 13, 0, 1), 0),
            (Hfgwtr, 27, Sysreg::new(3, 0, 7, 4, 0), 0),
            (Hfgwtr, 29, Sysreg::new(3, 0, 1, 0, 0), guest::SCTLR),
            (Hfgwtr, 32, Sysreg::new(3, 0, 2, 0, 2), 0),
            (Hfgwtr, 33, Sysreg::new(3, 0, 13, 0, 4), 0),
            (Hfgwtr, 34, Sysreg::new(3, 3, 13, 0, 3), 0),
            (Hfgwtr, 35, Sysreg::new(3, 3, 13, 0, 2), 0),
            (Hfgwtr, 36, Sysreg::new(3, 0, 2, 0, 0), 0),
            (Hdfgwtr, 0, Sysreg::new(2, 0, 0, 0, 5), 0),
            (Hdfgwtr, 3, Sysreg::new(2, 0, 0, 0, 6), 0),
            (Hdfgwtr, 4, Sysreg::new(2, 0, 0, 2, 2), 0),
            (Hdfgwtr, 8, Sysreg::new(2, 0, 1, 0, 4), 0),
        ],
        false,
    )
}

/// HFGITR_EL2.
fn fine_instructions() -> Outcome {
    need_fine!();
    check_rows(
        &[
            (Hfgitr, 1, Sysreg::new(1, 0, 7, 5, 0), 0),
            (Hfgitr, 6, Sysreg::new(1, 0, 7, 14, 2), 0),
            (Hfgitr, 10, Sysreg::new(1, 3, 7, 14, 1), guest::DATA),
            (Hfgitr, 11, Sysreg::new(1, 3, 7, 4, 1), guest::DATA),
            (Hfgitr, 12, Sysreg::new(1, 0, 7, 8, 0), guest::DATA),
            (Hfgitr, 29, Sysreg::new(1, 0, 8, 3, 1), 0),
            (Hfgitr, 42, Sysreg::new(1, 0, 8, 7, 0), 0),
            (Hfgitr, 54, Sysreg::new(1, 3, 7, 10, 1), guest::DATA),
        ],
        false,
    )
}

/// HCRX_EL2.FGTnXS: TLB maintenance with the nXS qualifier is excluded.
fn fine_no_xs() -> Outcome {
    need_fine!();
    if mrs!("ID_AA64ISAR1_EL1") >> 56 & 15 == 0 {
        skip!("no FEAT_XS");
    }
    let (plain, no_xs) = (Sysreg::new(1, 0, 8, 3, 1), Sysreg::new(1, 0, 9, 3, 1));
    let mut guest = guest();
    Hfgitr.write(1 << 29);
    check_trapped(&mut guest, plain, false)?;
    check_trapped(&mut guest, no_xs, false)?;
    set_hcrx(MSCEN | 1 << 4);
    check_trapped(&mut guest, plain, false)?;
    check_end(access(&mut guest, no_xs, false))
}

/// Of L2's EL0, too: TPIDR_EL0 in both execution states.
fn fine_of_programs() -> Outcome {
    need_fine!();
    let mut guest = guest();
    let read = Sysreg::new(3, 3, 13, 0, 2).read(5);
    // SVC: L2's own.
    let program = [read, 0xD400_0001];
    check_own(guest.run_at(EL0T, &program), 8, "with no trap")?;
    check_own(guest.run_at(EL0T32, &READ_TPIDRURW), 12, "in AArch32 with no trap")?;
    Hfgrtr.write(1 << 35);
    check_eq!(guest.run_at(EL0T, &program).class(), 0x18, "EC");
    check_eq!(guest.run_at(EL0T32, &READ_TPIDRURW).class(), 3, "EC in AArch32");
    check_eq!(guest.pc, guest::CODE, "ELR_EL2");
    Ok(())
}

/// HFGITR_EL2.{SVC_EL0, SVC_EL1}.
fn fine_calls() -> Outcome {
    need_fine!();
    let mut guest = guest();
    for (bit, pstate, vector) in [(52, EL0T, 8), (53, EL1H, 4)] {
        check_own(guest.run_at(pstate, code!("svc #7")), vector, "with no trap")?;
        Hfgitr.write(0b11 << 52 & !(1 << bit));
        check_own(guest.run_at(pstate, code!("svc #7")), vector, "with the other's trap")?;
        Hfgitr.write(1 << bit);
        let exit = guest.run_at(pstate, code!("svc #7"));
        check_eq!(exit.esr, 0x15 << 26 | 1 << 25 | 7, "ESR_EL2 with bit {bit}, vector {}", exit.vector);
        check_eq!(guest.pc, guest::CODE, "ELR_EL2");
        Hfgitr.write(0);
    }
    Ok(())
}

/// HFGITR_EL2.ERET traps for any value of L2's SPSR_EL1: including EL0, and illegal modes.
fn fine_returns() -> Outcome {
    need_fine!();
    for pstate in [EL1H, EL0T, 0x3C9] {
        let mut guest = guest();
        msr!("S3_5_C4_C0_0", pstate); // SPSR_EL12, ELR_EL12
        msr!("S3_5_C4_C0_1", guest::CODE + 4);
        Hfgitr.write(1 << 51);
        let exit = guest.run(&[0xD69F_03E0, NOP, hvc(5)]);
        check_eq!(exit.esr, 0x1A << 26 | 1 << 25, "ESR_EL2 of a return to {pstate:#x}, vector {}", exit.vector);
        check_eq!(guest.pc, guest::CODE, "ELR_EL2");
        check_eq!(mrs!("S3_5_C4_C0_0"), pstate, "SPSR_EL12");
        Hfgitr.write(0);
        if pstate == EL1H {
            check!(guest.resume().hvc() == Some(5), "a return of L2's own");
        }
    }
    Ok(())
}

/// A bit of a feature hidden from L1 traps nothing: the register is undefined for L2.
fn fine_absent() -> Outcome {
    need_fine!();
    if mrs!("ID_AA64PFR0_EL1") >> 28 & 15 != 0 {
        skip!("FEAT_RAS");
    }
    let mut guest = guest();
    Hfgrtr.write(u64::MAX);
    let exit = access(&mut guest, Sysreg::new(3, 0, 5, 3, 0), true); // ERRIDR_EL1
    check!(exit.own_vector() == Some(4), "{exit:x?}");
    check_eq!(mrs!("S3_5_C5_C2_0"), 1 << 25, "ESR_EL12");
    Ok(())
}

/// All traps set: they don't affect L1's own accesses, before L2 has run and after.
fn fine_not_at_el2() -> Outcome {
    need_fine!();
    let mut guest = guest();
    Control::ALL.into_iter().for_each(|control| control.write(u64::MAX));
    for _ in 0..2 {
        let [sctlr, thread] = [mrs!("SCTLR_EL1"), mrs!("TPIDR_EL1")];
        check!(sctlr & 1 != 0, "SCTLR_EL1 {sctlr:#x}");
        msr!("TPIDR_EL1", thread);
        payload::instruction!("tlbi vmalle1is\ndsb ish\nisb");
        check_end(guest.run(&[hvc(0)]))?;
    }
    // The traps for L2 are still in effect.
    check_trapped(&mut guest, Sysreg::new(3, 0, 13, 0, 4), true)
}

/// CPYFP, CPYFM, CPYFE of x2 bytes from x1 to x0.
fn copy(guest: &mut Guest) -> Exit {
    (guest.x[0], guest.x[1], guest.x[2]) = (guest::DATA, guest::DATA + 0x100, 64);
    guest.run(code!(".arch_extension mops", "cpyfp [x0]!, [x1]!, x2!", "cpyfm [x0]!, [x1]!, x2!", "cpyfe [x0]!, [x1]!, x2!"))
}

/// HCRX_EL2.MSCEn: without it memory copies are undefined for L2, and only for L2.
fn memory_copies() -> Outcome {
    if !has_copies() {
        skip!("no FEAT_MOPS");
    }
    let mut guest = guest();
    check_end(copy(&mut guest))?;
    check_eq!(guest.x[2], 0, "what is left to copy");
    set_hcrx(0);
    let exit = copy(&mut guest);
    check!(exit.own_vector() == Some(4), "without MSCEn: {exit:x?}");
    check_eq!(mrs!("S3_5_C5_C2_0"), 1 << 25, "ESR_EL12");
    // L1's own.
    let (from, mut to) = ([7_u64; 8], [0_u64; 8]);
    // SAFETY: the length is the minimum of both.
    unsafe {
        core::arch::asm!(".arch_extension mops", "cpyfp [x0]!, [x1]!, x2!", "cpyfm [x0]!, [x1]!, x2!", "cpyfe [x0]!, [x1]!, x2!",
            inout("x0") to.as_mut_ptr() => _, inout("x1") from.as_ptr() => _, inout("x2") 64_u64 => _, options(nostack));
    }
    check!(to == from, "what L1 copied: {to:?}");
    set_hcrx(MSCEN);
    check_end(copy(&mut guest))
}

/// A copy whose flags differ from its prologue's: EC 0x27, for L2's EL1, or with HCRX_EL2.MCE2 for EL2; and for L1, of its own.
fn exceptions_of_copies() -> Outcome {
    if !has_copies() {
        skip!("no FEAT_MOPS");
    }
    // Either option, selected by PSTATE.C, is wrong for one of the two.
    let wrong = code!(".arch_extension mops", "cmp xzr, xzr", "cpyfm [x0]!, [x1]!, x2!", "cmn xzr, xzr", "cpyfm [x0]!, [x1]!, x2!");
    let mut guest = guest();
    let operands = [guest::DATA, guest::DATA + 0x100, 64];
    guest.x[..3].copy_from_slice(&operands);
    let exit = guest.run(wrong);
    check!(exit.own_vector() == Some(4), "{exit:x?}");
    check_eq!(mrs!("S3_5_C5_C2_0") >> 26, 0x27, "EC in ESR_EL12");
    set_hcrx(MSCEN | MCE2);
    guest.x[..3].copy_from_slice(&operands);
    let exit = guest.run(wrong);
    check!(exit.vector == guest::SYNCHRONOUS && exit.class() == 0x27, "vector and EC: {exit:x?}");
    set_hcrx(MSCEN);
    let bytes = [0_u64; 16];
    guest.hcr = payload::entry::HCR;
    guest.x[..3].copy_from_slice(&[bytes.as_ptr() as u64, bytes.as_ptr() as u64 + 64, 64]);
    (guest.pc, guest.pstate) = (wrong.as_ptr() as u64, 0x3C9);
    let exit = guest.resume();
    check!(exit.vector == 4 && exit.class() == 0x27, "vector and EC of L1's own: {exit:x?}");
    Ok(())
}
