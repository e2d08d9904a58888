//! Timers: L2's by offset and interrupt, L1's own while L2 runs and waits.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::psci;
use payload::timer::{ENABLE, IMASK, ISTATUS, Timer};

use crate::enter::{check_end, guest};
use crate::guest::{self, Guest, code};

pub const TESTS: &[Test] = payload::tests![
    own_while_l2_runs,
    own_while_l2_waits,
    offset,
    status_with_offset,
    virtual_of_l2,
    virtual_while_l2_waits,
    sleep_with_offset,
    of_waiting_l2,
    of_l2_at_el2,
    of_l2_without_routing,
    of_l2_armed_again,
    waits_for_list_register,
    forgotten_by_power_off,
    registers
];

/// HCR_EL2.IMO.
const IMO: u64 = 1 << 4;

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
            gone(timer.intid())?;
            check_end(guest.run(code!("nop")))?;
        }
    }
    Ok(())
}

/// Waits until the interrupt of a timer that was stopped is not pending: the line may have been sampled just before.
fn gone(intid: u32) -> Outcome {
    check!(wait::until(|| !gic::get(Bits::Pending, intid) && !irq::is_pending()), "{intid}: pending after it was stopped");
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

/// CNTV_CTL_EL02.ISTATUS compares with L2's counter, independently of L1's.
fn status_with_offset() -> Outcome {
    const FAR: u64 = 1 << 40;
    let mut guest = guest();
    let mut status = |offset: u64, deadline: u64| -> Result<u64, Fail> {
        msr!("CNTVOFF_EL2", offset);
        guest.x[..2].copy_from_slice(&[deadline, ENABLE | IMASK]);
        check_end(guest.run(code!("msr CNTV_CVAL_EL0, x0", "msr CNTV_CTL_EL0, x1", "isb")))?;
        Ok(mrs!("S3_5_C14_C3_1"))
    };
    // L2's counter is ahead: the deadline has passed for L2 only.
    check_eq!(status(FAR.wrapping_neg(), FAR / 2)?, ENABLE | IMASK | ISTATUS, "CNTV_CTL_EL02, L2 being ahead");
    // It is behind: the deadline has passed for L1 only, unless L1 was preempted for as long as it has run.
    for _ in 0..10 {
        let deadline = wait::now();
        let offset = deadline / 2;
        let control = status(offset, deadline)?;
        if wait::now() - offset < deadline {
            check_eq!(control, ENABLE | IMASK, "CNTV_CTL_EL02, L2 being behind");
            return Ok(());
        }
    }
    Err(Fail::new(format_args!("no attempt was soon enough")))
}

/// L2's virtual timer interrupts L1 by PPI 27, and L1 reads its state.
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
        gone(INTID)?;
        check_end(guest.run(code!("mrs x0, CNTV_CTL_EL0")))?;
        check_eq!(guest.x[0], ENABLE | IMASK | ISTATUS, "L2's CNTV_CTL_EL0");
        msr!("S3_5_C14_C3_1", 0);
    }
    Ok(())
}

/// A CPU that was turned off with an interrupt of L2's timer pending does not find it when it is on again.
fn forgotten_by_power_off() -> Outcome {
    const INTID: u32 = payload::board::VIRTUAL_TIMER_INTID;
    smp::need(2)?;
    smp::start_all()?;
    smp::give(1, || {
        gic::reset_cpu();
        gic::set(Bits::Enable, INTID);
        let mut guest = guest();
        guest.x[0] = 1;
        guest.run(code!("msr CNTV_TVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb", "772: b 772b"));
        check!(gic::get(Bits::Pending, INTID), "L2's timer does not interrupt L1");
        psci::cpu_off();
        Err(Fail::new(format_args!("CPU_OFF returned")))
    });
    check!(wait::until(|| psci::affinity_info(1) == psci::OFF || smp::is_idle(1)), "CPU 1 stays on");
    if smp::is_idle(1) {
        return smp::join(1);
    }
    smp::forget(1);
    smp::start(1, 0)?;
    smp::on(1, || {
        check!(!gic::get(Bits::Pending, INTID), "the timer's interrupt is pending");
        gic::reset_cpu();
        gic::set(Bits::Enable, INTID);
        check_end(guest().run(code!("nop")))
    })
}

/// L2, whose counter has just started, sleeps until its deadline. (Other interrupts may end a wait, too; how
/// often depends on the machine.)
fn sleep_with_offset() -> Outcome {
    const INTID: u32 = payload::board::VIRTUAL_TIMER_INTID;
    gic::set(Bits::Enable, INTID);
    let mut guest = guest();
    msr!("CNTVOFF_EL2", wait::now() - 1000);
    guest.x[..2].copy_from_slice(&[wait::ticks(100_000), 0]);
    let exit = guest.run(code!("msr CNTV_TVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb", "772: wfi", "b 772b"));
    check_eq!(exit.vector, guest::IRQ, "the exit");
    check_eq!(icc::iar1(), INTID, "ICC_IAR1_EL1");
    msr!("S3_5_C14_C3_1", 0);
    icc::eoir1(INTID);
    gone(INTID)
}

/// A timer of L2: how L2 arms it for the time in x0, its interrupt, and how L1 stops it.
struct OfL2 {
    arm: &'static [u32],
    intid: u32,
    /// Its control register, as accessed by L1.
    control: fn() -> u64,
    stop: fn(),
}

fn of_l2() -> [OfL2; 2] {
    [
        OfL2 {
            arm: code!("msr CNTV_CVAL_EL0, x0", "mov x0, #1", "msr CNTV_CTL_EL0, x0", "isb"),
            intid: payload::board::VIRTUAL_TIMER_INTID,
            control: || mrs!("S3_5_C14_C3_1"),
            stop: || msr!("S3_5_C14_C3_1", 0),
        },
        OfL2 {
            arm: code!("msr CNTP_CVAL_EL0, x0", "mov x0, #1", "msr CNTP_CTL_EL0, x0", "isb"),
            intid: payload::board::PHYSICAL_TIMER_INTID,
            control: || mrs!("S3_5_C14_C2_1"),
            stop: || msr!("S3_5_C14_C2_1", 0),
        },
    ]
}

impl OfL2 {
    /// Arms it and leaves L2.
    fn start(&self, microseconds: u64) -> Result<Guest, Fail> {
        // However slow this machine is, it must not end L2's run before that.
        gic::clear(Bits::Enable, self.intid);
        let mut guest = guest();
        msr!("CNTVOFF_EL2", 1000);
        guest.x[0] = wait::now() + wait::ticks(microseconds);
        check_end(guest.run(self.arm))?;
        gic::set(Bits::Enable, self.intid);
        Ok(guest)
    }

    /// It interrupts L1, until L1 stops it.
    fn check(&self) -> Outcome {
        check_eq!(icc::iar1(), self.intid, "ICC_IAR1_EL1");
        check_eq!((self.control)(), ENABLE | ISTATUS, "{}: control register", self.intid);
        (self.stop)();
        icc::eoir1(self.intid);
        wait::settle();
        if irq::is_pending() {
            // L1 stopped the timer in memory: its interrupt may have become pending again just before. Stile withdraws it at the next exit,
            // such as the end of a slice between the two reads.
            let again = icc::iar1();
            check!([self.intid, icc::SPURIOUS].contains(&again), "ICC_IAR1_EL1 after it was stopped: {again}");
            if again == self.intid {
                icc::eoir1(again);
            }
        }
        check!(wait::until(|| !irq::is_pending()), "{}: pending after it was stopped", self.intid);
        Ok(())
    }
}

/// A timer of L2's ends its WFI, and interrupts L1.
fn of_waiting_l2() -> Outcome {
    for timer in of_l2() {
        for microseconds in [1_000, 0, 100, 10_000] {
            let mut guest = timer.start(microseconds)?;
            let exit = guest.run(code!("772: wfi", "b 772b"));
            check_eq!(exit.vector, guest::IRQ, "{}: the exit", timer.intid);
            timer.check()?;
        }
    }
    Ok(())
}

/// A timer of L2 interrupts L1 at EL2, too, both while L1 polls and while it waits.
fn of_l2_at_el2() -> Outcome {
    for timer in of_l2() {
        for (microseconds, waits) in [(1_000, false), (1_000, true), (0, false), (100, true), (10_000, true)] {
            timer.start(microseconds)?;
            let came = wait::until(|| {
                if waits {
                    payload::instruction!("wfi");
                }
                irq::is_pending()
            });
            check!(came, "{}: no interrupt at EL2; L1 waits: {waits}", timer.intid);
            timer.check()?;
            check_end(guest().run(code!("nop")))?;
        }
    }
    Ok(())
}

/// L1 does not route interrupts to itself: L2 has L1's interface. A timer that is stopped between the acknowledgement and the end of its
/// interrupt, by L2 or by L1, does not interrupt again, even if other vCPUs had the CPU meanwhile.
fn of_l2_without_routing() -> Outcome {
    /// Microseconds, longer than a slice.
    const LONG: u64 = 20_000;
    /// L2 acknowledges the interrupt of the timer that x0 arms, waits for x5 ticks, and stops it unless x3 is 0.
    macro_rules! interrupted {
        ($timer:literal) => {
            code!(
                concat!("msr ", $timer, "_CVAL_EL0, x0"),
                "mov x0, #1",
                concat!("msr ", $timer, "_CTL_EL0, x0"),
                "isb",
                "772: mrs x1, ISR_EL1",
                "tbz x1, #7, 772b",
                "mrs x2, S3_0_C12_C12_0",
                "mrs x6, CNTVCT_EL0",
                "add x6, x6, x5",
                "774: isb",
                "mrs x7, CNTVCT_EL0",
                "cmp x7, x6",
                "b.lo 774b",
                "cbz x3, 773f",
                concat!("msr ", $timer, "_CTL_EL0, xzr"),
                "773: isb"
            )
        };
    }
    let codes = [interrupted!("CNTV"), interrupted!("CNTP")];
    for (timer, code) in of_l2().into_iter().zip(codes) {
        for (by_l2, pause) in [(true, 0), (false, 0), (true, LONG), (false, LONG)] {
            gic::set(Bits::Enable, timer.intid);
            let mut guest = guest();
            guest.hcr &= !IMO;
            guest.x[0] = wait::now();
            guest.x[3] = by_l2.into();
            guest.x[5] = if by_l2 { wait::ticks(pause) } else { 0 };
            check_end(guest.run(code))?;
            check_eq!(guest.x[2], u64::from(timer.intid), "L2's ICC_IAR1_EL1");
            if !by_l2 {
                wait::spin(pause);
                (timer.stop)();
            }
            let end = code!("msr S3_0_C12_C12_1, x2", "isb", "mov x4, #0x4000", "772: subs x4, x4, #1", "b.ne 772b", "mrs x4, ISR_EL1");
            check_end(guest.run(end))?;
            check_eq!(guest.x[4], 0, "{}: ISR_EL1 after it was stopped, by L2: {by_l2}, after {pause} us", timer.intid);
        }
    }
    Ok(())
}

/// L2 with L1's interface stops its timer, makes an exit that L1 does not see, ends the interrupt, and arms the timer again: it interrupts
/// a second time.
fn of_l2_armed_again() -> Outcome {
    /// Each interrupt is awaited for up to x4 polls; x2 and x3 are the acknowledged ones.
    macro_rules! twice {
        ($timer:literal) => {
            code!(
                concat!("msr ", $timer, "_CVAL_EL0, x0"),
                "mov x1, #1",
                "mov x5, x4",
                concat!("msr ", $timer, "_CTL_EL0, x1"),
                "772: isb",
                "mrs x6, ISR_EL1",
                "subs x5, x5, #1",
                "b.eq 773f",
                "tbz x6, #7, 772b",
                "773: mrs x2, S3_0_C12_C12_0",
                concat!("msr ", $timer, "_CTL_EL0, xzr"),
                "isb",
                "mrs x6, ID_AA64MMFR0_EL1",
                "msr S3_0_C12_C12_1, x2",
                "mov x5, x4",
                concat!("msr ", $timer, "_CTL_EL0, x1"),
                "774: isb",
                "mrs x6, ISR_EL1",
                "subs x5, x5, #1",
                "b.eq 775f",
                "tbz x6, #7, 774b",
                "775: mrs x3, S3_0_C12_C12_0",
                concat!("msr ", $timer, "_CTL_EL0, xzr"),
                "msr S3_0_C12_C12_1, x3",
                "isb"
            )
        };
    }
    for (timer, code) in of_l2().into_iter().zip([twice!("CNTV"), twice!("CNTP")]) {
        gic::set(Bits::Enable, timer.intid);
        let mut guest = guest();
        guest.hcr &= !IMO;
        guest.x[0] = wait::now();
        guest.x[4] = 1 << 22;
        check_end(guest.run(code))?;
        check_eq!(guest.x[2], u64::from(timer.intid), "L2's ICC_IAR1_EL1");
        check_eq!(guest.x[3], u64::from(timer.intid), "L2's ICC_IAR1_EL1, armed again");
    }
    Ok(())
}

/// WFI of L2 with an interrupt in a list register completes at once.
fn waits_for_list_register() -> Outcome {
    let mut guest = guest();
    crate::lists::write(0, 1 << 62 | 1 << 60 | 0x80 << 48 | 40);
    check_end(guest.run(code!("wfi", "mrs x0, S3_0_C12_C12_0")))?;
    check_eq!(guest.x[0], 40, "ICC_IAR1_EL1");
    Ok(())
}

/// L1's timers keep their values while L2 uses its own.
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
