//! More simultaneous interrupts than any implementation has list registers.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::random::Random;
use payload::tests;

pub const TESTS: &[Test] = tests![many_polled, many_taken, many_pending_and_active, many_while_handling];

/// Number of interrupts of [`all`].
const COUNT: usize = 16 + gic::SPARE_SPIS as usize;

/// All SGIs and all spare SPIs.
fn all() -> impl Iterator<Item = u32> {
    (0..16).chain(gic::spare_spis())
}

/// Gives all interrupts random priorities and makes them pending.
fn pend_all(seed: u64) {
    let mut random = Random::new(seed);
    for intid in all() {
        // Five bits of priority, and not the lowest, which PMR may mask.
        gic::set_priority(intid, (random.below(31) * 8) as u8);
        gic::set(Bits::Enable, intid);
    }
    icc::set_pmr(0);
    for intid in all() {
        if intid < 16 {
            icc::sgi(intid, 1 << smp::this());
        } else {
            gic::set(Bits::Pending, intid);
        }
    }
    icc::set_pmr(0xFF);
}

/// All were taken once, in order of priority.
fn check_order(taken: impl Iterator<Item = u32>) -> Outcome {
    let mut seen = 0_u64;
    let mut last = (0, 0);
    for intid in taken {
        let Some(position) = all().position(|other| other == intid) else {
            return Err(Fail::new(format_args!("interrupt {intid} was not pending")));
        };
        check!(seen >> position & 1 == 0, "interrupt {intid} came twice");
        seen |= 1 << position;
        let priority = gic::priority(intid);
        check!(priority >= last.0, "interrupt {intid}, priority {priority:#x}, came after {}, priority {:#x}", last.1, last.0);
        last = (priority, intid);
    }
    check_eq!(seen, (1 << COUNT) - 1, "interrupts that came");
    Ok(())
}

fn many_polled() -> Outcome {
    for seed in 0..4 {
        gic::reset();
        pend_all(seed);
        let mut taken = [0; COUNT];
        for slot in &mut taken {
            wait::until(|| icc::hppir1() != icc::SPURIOUS);
            *slot = icc::iar1();
            icc::eoir1(*slot);
        }
        check_order(taken.into_iter())?;
        check_eq!(icc::iar1(), icc::SPURIOUS, "IAR1 after all");
    }
    Ok(())
}

fn many_taken() -> Outcome {
    for seed in 4..8 {
        gic::reset();
        pend_all(seed);
        let this = smp::this();
        wait::until(|| {
            irq::take();
            irq::count(this) >= COUNT
        });
        check_eq!(irq::count(this), COUNT, "number of interrupts");
        check_order((0..COUNT).map(|n| irq::nth(this, n)))?;
    }
    Ok(())
}

/// All active at once (EOImode 1), all pending again, then deactivated: each is delivered exactly once more.
fn many_pending_and_active() -> Outcome {
    icc::set_ctlr(icc::CTLR_EOIMODE);
    pend_all(9);
    for round in 0..2 {
        let mut taken = [0; COUNT];
        for slot in &mut taken {
            wait::until(|| icc::hppir1() != icc::SPURIOUS);
            *slot = icc::iar1();
            check!(*slot != icc::SPURIOUS, "round {round}: an interrupt is missing");
            icc::eoir1(*slot);
        }
        check_order(taken.into_iter())?;
        for intid in all() {
            check!(gic::get(Bits::Active, intid), "round {round}: {intid} is not active");
        }
        if round == 0 {
            pend_all(10);
            wait::settle();
            check_eq!(icc::iar1(), icc::SPURIOUS, "IAR1 with all active");
        }
        // Masked, so that no interrupt is delivered when another is deactivated: the order is checked.
        icc::set_pmr(0);
        for intid in all() {
            icc::dir(intid);
        }
        icc::set_pmr(0xFF);
    }
    check_eq!(icc::iar1(), icc::SPURIOUS, "IAR1 after all");
    Ok(())
}

/// Each handler makes the next two pending, until all have been.
fn many_while_handling() -> Outcome {
    for intid in gic::spare_spis() {
        gic::set(Bits::Enable, intid);
    }
    irq::set_hook(|intid| {
        let first = gic::spare_spis().start;
        let n = intid - first;
        for next in [2 * n + 1, 2 * n + 2] {
            if next < gic::SPARE_SPIS {
                gic::set(Bits::Pending, first + next);
            }
        }
    });
    let first = gic::spare_spis().start;
    gic::set(Bits::Pending, first);
    let this = smp::this();
    let count = gic::SPARE_SPIS as usize;
    wait::until(|| {
        irq::take();
        irq::count(this) >= count
    });
    wait::settle();
    irq::take();
    check_eq!(irq::count(this), count, "number of interrupts");
    let seen = (0..count).fold(0_u32, |seen, n| seen | 1 << (irq::nth(this, n) - first));
    check_eq!(seen, (1 << count) - 1, "interrupts that came");
    Ok(())
}
