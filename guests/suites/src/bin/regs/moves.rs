//! MRS and MSR with every general register.

use payload::encode::Sysreg;
use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::probe::{self, Registers};
use payload::tests;

pub const TESTS: &[Test] = tests![read_into_each, write_from_each, sgi_from_each];

const ISAR0: Sysreg = Sysreg::new(3, 0, 0, 6, 0);
const CVAL: Sysreg = Sysreg::new(3, 3, 14, 3, 2);
const SGI1R: Sysreg = Sysreg::new(3, 0, 12, 11, 5);

/// All registers but one are as before.
pub fn unchanged_but(index: u32, before: &Registers, after: &Registers, what: &str) -> Outcome {
    for n in (0..31).filter(|n| *n != index) {
        let (before, after) = (before[n as usize], after[n as usize]);
        check_eq!(after, before, "{what} x{index}: x{n}");
    }
    Ok(())
}

/// An ID register, which a hypervisor traps. Register 31 is the zero register.
fn read_into_each() -> Outcome {
    let value = mrs!("ID_AA64ISAR0_EL1");
    for t in 0..32 {
        let before = probe::pattern(u64::from(t));
        let mut after = before;
        let fault = probe::run(&[ISAR0.read(t)], &mut after);
        check!(fault.is_none(), "MRS x{t} took an exception: {fault:x?}");
        if t < 31 {
            check_eq!(after[t as usize], value, "x{t} after MRS");
        }
        unchanged_but(t, &before, &after, "MRS")?;
    }
    Ok(())
}

fn write_from_each() -> Outcome {
    for t in 0..32 {
        let before = probe::pattern(100 + u64::from(t));
        let mut after = before;
        probe::run(&[CVAL.write(t)], &mut after);
        check_eq!(mrs!("CNTV_CVAL_EL0"), if t < 31 { before[t as usize] } else { 0 }, "CNTV_CVAL_EL0 after MSR from x{t}");
        unchanged_but(32, &before, &after, "MSR")?;
    }
    Ok(())
}

/// ICC_SGI1R_EL1, which a hypervisor traps: the interrupt must be the one that the register asks for.
fn sgi_from_each() -> Outcome {
    if machine::is_gicv2() {
        skip!("the machine has a GICv2");
    }
    for t in 0..31_u32 {
        let intid = t % 16;
        let mut registers = probe::pattern(u64::from(t));
        registers[t as usize] = u64::from(intid) << 24 | 1 << smp::this();
        let before = registers;
        let fault = probe::run(&[SGI1R.write(t)], &mut registers);
        check!(fault.is_none(), "MSR from x{t} took an exception: {fault:x?}");
        for other in 0..16 {
            let pending = gic::get(Bits::Pending, other);
            check!(pending == (other == intid), "after SGI {intid} from x{t}, SGI {other} is pending: {pending}");
        }
        gic::clear(Bits::Pending, intid);
        unchanged_but(32, &before, &registers, "SGI from")?;
    }
    // From the zero register: no target.
    let mut registers = probe::pattern(1);
    probe::run(&[SGI1R.write(31)], &mut registers);
    check!(!gic::get(Bits::Pending, 0), "SGI 0 is pending after zero was written");
    Ok(())
}
