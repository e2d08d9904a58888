//! Timers: L2's by offset and interrupt, L1's own while L2 runs and waits.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::timer::{ENABLE, IMASK, ISTATUS, Timer};

use crate::enter::{check_end, guest};
use crate::guest::{self, code};

pub const TESTS: &[Test] = payload::tests![
    own_while_l2_runs,
    own_while_l2_waits,
    offset,
    virtual_of_l2,
    virtual_while_l2_waits,
    of_l2_at_el2,
    waits_for_list_register,
    registers
];

/// Each of L1's timers ends L2's run.
fn own_while_l2_runs() -> Outcome {
    own(code!("772: b 772b"))
}

/// And its WFI.
fn own_while_l2_waits() -> Outcome {
    own(code!("772: wfi", "b 772b"))
}

fn own(code: &[u32]) -> Outcome {
    for timer in Timer::ALL {
        for _ in 0..5 {
            let mut guest = guest();
            gic::set(Bits::Enable, timer.intid());
            timer.start(1_000);
            let exit = guest.run(code);
            check_eq!(exit.vector, guest::IRQ, "{timer:?}: the exit");
            check!(timer.control() & ISTATUS != 0, "{timer:?}: CTL {:#x}", timer.control());
            check_eq!(icc::iar1(), timer.intid(), "{timer:?}: ICC_IAR1_EL1");
            timer.stop();
            icc::eoir1(timer.intid());
            check_end(guest.run(code!("nop")))?;
        }
    }
    Ok(())
}

/// CNTVOFF_EL2.
fn offset() -> Outcome {
    let mut guest = guest();
    let offset = 1 << 40;
    msr!("CNTVOFF_EL2", offset);
    let before = wait::now();
    check_end(guest.run(code!("isb", "mrs x0, CNTVCT_EL0", "isb", "mrs x1, CNTPCT_EL0")))?;
    let after = wait::now();
    let count = guest.x[0].wrapping_add(offset);
    check!((before..=after).contains(&count), "L2's counter is {count}, between {before} and {after}");
    check!((before..=after).contains(&guest.x[1]), "its physical counter is {}", guest.x[1]);
    Ok(())
}

/// L2's virtual timer interrupts L1 by PPI 27, and L1 reads of its state.
fn virtual_of_l2() -> Outcome {
    virtual_ends(code!("msr CNTV_TVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb", "772: b 772b"))
}

/// And L2's WFI.
fn virtual_while_l2_waits() -> Outcome {
    virtual_ends(code!("msr CNTV_TVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb", "772: wfi", "b 772b"))
}

fn virtual_ends(code: &[u32]) -> Outcome {
    const INTID: u32 = payload::board::VIRTUAL_TIMER_INTID;
    gic::set(Bits::Enable, INTID);
    for _ in 0..5 {
        let mut guest = guest();
        msr!("CNTVOFF_EL2", 1000);
        guest.x[0] = wait::ticks(1_000);
        let exit = guest.run(code);
        check_eq!(exit.vector, guest::IRQ, "the exit");
        check_eq!(icc::iar1(), INTID, "ICC_IAR1_EL1");
        check_eq!(mrs!("S3_5_C14_C3_1"), ENABLE | ISTATUS, "CNTV_CTL_EL02");
        msr!("S3_5_C14_C3_1", ENABLE | IMASK);
        icc::eoir1(INTID);
        check_end(guest.run(code!("mrs x0, CNTV_CTL_EL0")))?;
        check_eq!(guest.x[0], ENABLE | IMASK | ISTATUS, "L2's CNTV_CTL_EL0");
        msr!("S3_5_C14_C3_1", 0);
    }
    Ok(())
}

/// L2's timers go on while L1 runs, and interrupt that.
fn of_l2_at_el2() -> Outcome {
    const VIRTUAL: u32 = payload::board::VIRTUAL_TIMER_INTID;
    const PHYSICAL: u32 = payload::board::PHYSICAL_TIMER_INTID;
    for (intid, set) in [
        (VIRTUAL, code!("msr CNTV_TVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb")),
        (PHYSICAL, code!("msr CNTP_TVAL_EL0, x0", "mov x0, #1", "msr CNTP_CTL_EL0, x0", "isb")),
    ] {
        gic::set(Bits::Enable, intid);
        for _ in 0..5 {
            let mut guest = guest();
            msr!("CNTVOFF_EL2", 1000);
            guest.x[0] = wait::ticks(20_000);
            let exit = guest.run(set);
            // On a slow machine it may ring before.
            check!(exit.hvc() == Some(0) || exit.vector == guest::IRQ, "{exit:x?}");
            check!(wait::until(|| gic::get(Bits::Pending, intid)), "interrupt {intid} does not come while L1 runs");
            check_eq!(icc::iar1(), intid, "ICC_IAR1_EL1");
            // L1 stops it.
            if intid == VIRTUAL {
                msr!("S3_5_C14_C3_1", 0)
            } else {
                msr!("S3_5_C14_C2_1", 0)
            }
            icc::eoir1(intid);
            check_end(guest.run(code!("nop")))?;
            check!(wait::until(|| !gic::get(Bits::Pending, intid)), "interrupt {intid} stays");
        }
    }
    Ok(())
}

/// WFI of L2 with an interrupt in a list register goes on at once.
fn waits_for_list_register() -> Outcome {
    let mut guest = guest();
    crate::lists::write(0, 1 << 62 | 1 << 60 | 0x80 << 48 | 40);
    check_end(guest.run(code!("wfi", "mrs x0, S3_0_C12_C12_0")))?;
    check_eq!(guest.x[0], 40, "ICC_IAR1_EL1");
    Ok(())
}

/// L1's timers keep what is written while L2 has its own.
fn registers() -> Outcome {
    let mut guest = guest();
    for timer in Timer::ALL {
        timer.set_deadline(0x1234_5678_9ABC);
        timer.set_control(IMASK | ENABLE);
    }
    check_end(guest.run(code!(
        "mov x0, #0x777",
        "msr CNTV_CVAL_EL0, x0",
        "msr CNTP_CVAL_EL0, x0",
        "mov x0, #2",
        "msr CNTV_CTL_EL0, x0",
        "msr CNTP_CTL_EL0, x0",
    )))?;
    for timer in Timer::ALL {
        check_eq!(timer.deadline(), 0x1234_5678_9ABC, "{timer:?}: L1's CVAL");
    }
    check_eq!(mrs!("S3_5_C14_C3_2"), 0x777, "CNTV_CVAL_EL02");
    check_eq!(mrs!("S3_5_C14_C2_2"), 0x777, "CNTP_CVAL_EL02");
    Ok(())
}
