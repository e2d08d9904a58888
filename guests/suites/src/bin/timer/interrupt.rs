//! Each timer's interrupt.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::timer::{ENABLE, IMASK, Timer};
use payload::{instruction, tests};

pub const TESTS: &[Test] = tests![
    expires,
    past_deadline,
    negative_left,
    cancelled,
    cancelled_while_pending,
    comes_again_while_asserted,
    pending_follows_line,
    disabled_at_gic,
    wakes_wfi_taken,
    wakes_wfi_masked,
    many_shots,
    other_interrupts_meanwhile,
];

fn this() -> usize {
    smp::this()
}

/// Waits with interrupts unmasked for a number of interrupts; the last must be this timer's.
fn expect(timer: Timer, count: usize) -> Outcome {
    irq::unmask();
    wait::until(|| irq::count(this()) >= count);
    irq::mask();
    check!(irq::count(this()) == count, "{timer:?}: {} interrupts, expected {count}", irq::count(this()));
    check_eq!(irq::nth(this(), count - 1), timer.intid(), "{timer:?}: interrupt");
    Ok(())
}

fn expires() -> Outcome {
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        timer.start(1_000);
        let deadline = timer.deadline();
        expect(timer, n + 1)?;
        check!(timer.count() >= deadline, "{timer:?}: an interrupt before the deadline");
    }
    Ok(())
}

fn past_deadline() -> Outcome {
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        timer.set_deadline(0);
        timer.set_control(ENABLE);
        expect(timer, n + 1)?;
    }
    Ok(())
}

fn negative_left() -> Outcome {
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        timer.set_left(-1_000);
        timer.set_control(ENABLE);
        expect(timer, n + 1)?;
    }
    Ok(())
}

/// A host that stalls may let the deadline pass before the timer is cancelled: the distance is then doubled.
fn cancelled() -> Outcome {
    for timer in Timer::ALL {
        let cancelled = (0..10).find_map(|doublings| cancel_in_time(timer, 3_000 << doublings));
        check!(cancelled.is_some(), "{timer:?}: every deadline passed before the timer was cancelled");
        let deadline = cancelled.unwrap_or(0);
        irq::unmask();
        while timer.count() < deadline + wait::ticks(3_000) {}
        irq::mask();
        check_eq!(irq::count(this()), 0, "{timer:?}: interrupts of a cancelled timer");
        timer.stop();
    }
    Ok(())
}

/// Arms and cancels a timer, once by CTL and once by CVAL. Returns the last deadline unless the first or the last passed meanwhile.
fn cancel_in_time(timer: Timer, microseconds: u64) -> Option<u64> {
    timer.start(microseconds);
    let first = timer.deadline();
    timer.stop();
    let stopped = timer.count();
    timer.start(microseconds);
    let last = timer.deadline();
    timer.set_deadline(u64::MAX);
    if stopped < first && timer.count() < last {
        return Some(last);
    }
    timer.stop();
    // The line may have risen: it must be seen to fall before the next attempt.
    wait::until(|| !gic::get(Bits::Pending, timer.intid()) && !irq::is_pending());
    None
}

/// The line falls before the interrupt is acknowledged: within finite time it is no longer pending.
fn cancelled_while_pending() -> Outcome {
    for timer in Timer::ALL {
        for stop in
            [|timer: Timer| timer.stop(), |timer: Timer| timer.set_control(ENABLE | IMASK), |timer: Timer| timer.set_deadline(u64::MAX)]
        {
            timer.set_deadline(0);
            timer.set_control(ENABLE);
            check!(wait::until(irq::is_pending), "{timer:?}: no interrupt");
            stop(timer);
            check!(wait::until(|| !gic::get(Bits::Pending, timer.intid())), "{timer:?}: still pending");
            check!(wait::until(|| !irq::is_pending()), "{timer:?}: ISR_EL1.I stays 1");
            check_eq!(icc::iar1(), icc::SPURIOUS, "{timer:?}: IAR1");
            timer.stop();
        }
    }
    Ok(())
}

/// The interrupt is level-sensitive: ended without stopping the timer, it is signalled again immediately.
fn comes_again_while_asserted() -> Outcome {
    for timer in Timer::ALL {
        timer.set_deadline(0);
        timer.set_control(ENABLE);
        for round in 0..50 {
            check!(wait::until(irq::is_pending), "{timer:?}: no interrupt in round {round}");
            check_eq!(icc::iar1(), timer.intid(), "{timer:?}: IAR1 in round {round}");
            // Active: not signalled again, although the line is high.
            check_eq!(icc::hppir1(), icc::SPURIOUS, "{timer:?}: HPPIR1 while active");
            icc::eoir1(timer.intid());
        }
        timer.stop();
        // Reads the line's state: a hypervisor that passes the timer through learns only now that the line
        // fell.
        wait::until(|| !gic::get(Bits::Pending, timer.intid()));
        check_eq!(icc::iar1(), icc::SPURIOUS, "{timer:?}: IAR1 after it was stopped");
    }
    Ok(())
}

fn pending_follows_line() -> Outcome {
    for timer in Timer::ALL {
        gic::clear(Bits::Enable, timer.intid());
        timer.set_deadline(0);
        timer.set_control(ENABLE);
        check!(wait::until(|| gic::get(Bits::Pending, timer.intid())), "{timer:?}: ISPENDR is 0 while the line is high");
        // The line, not a latch: clearing has no effect.
        gic::clear(Bits::Pending, timer.intid());
        check!(wait::until(|| gic::get(Bits::Pending, timer.intid())), "{timer:?}: ICPENDR cleared a line that is high");
        timer.stop();
        check!(wait::until(|| !gic::get(Bits::Pending, timer.intid())), "{timer:?}: ISPENDR is 1 after the line fell");
        gic::set(Bits::Enable, timer.intid());
    }
    Ok(())
}

fn disabled_at_gic() -> Outcome {
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        gic::clear(Bits::Enable, timer.intid());
        timer.set_deadline(0);
        timer.set_control(ENABLE);
        irq::unmask();
        wait::settle();
        irq::mask();
        check_eq!(irq::count(this()), n, "{timer:?}: interrupts while disabled");
        gic::set(Bits::Enable, timer.intid());
        expect(timer, n + 1)?;
    }
    Ok(())
}

/// WFI with interrupts unmasked: the interrupt may be taken before WFI, so it is awaited repeatedly.
fn wakes_wfi_taken() -> Outcome {
    for timer in Timer::ALL {
        for _ in 0..20 {
            let before = irq::count(this());
            timer.start(500);
            // Masked, so that none is lost between check and WFI.
            while irq::count(this()) == before {
                instruction!("wfi");
                irq::take();
            }
            check!(irq::count(this()) == before + 1, "{timer:?}: more than one interrupt");
        }
    }
    Ok(())
}

/// An interrupt masked by PSTATE.I ends WFI and is not taken.
fn wakes_wfi_masked() -> Outcome {
    for timer in Timer::ALL {
        for _ in 0..20 {
            timer.start(300);
            while !irq::is_pending() {
                instruction!("wfi");
            }
            check_eq!(irq::count(this()), 0, "interrupts taken while masked");
            timer.stop();
            // Reading the state makes the hypervisor sample the line.
            wait::until(|| !gic::get(Bits::Pending, timer.intid()));
        }
    }
    Ok(())
}

fn many_shots() -> Outcome {
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        for shot in 1..=300 {
            timer.start(20 + shot % 7 * 10);
            expect(timer, n * 300 + shot as usize)?;
        }
    }
    Ok(())
}

/// The timer fires while more interrupts than list registers are pending and active.
fn other_interrupts_meanwhile() -> Outcome {
    icc::set_bpr1(0);
    for intid in gic::spare_spis() {
        gic::set_priority(intid, 0xC0);
        gic::set(Bits::Enable, intid);
        gic::set(Bits::Pending, intid);
    }
    check!(wait::until(irq::is_pending), "no SPI is pending");
    let spi = icc::iar1();
    for (n, timer) in Timer::ALL.into_iter().enumerate() {
        gic::set_priority(timer.intid(), 0x40);
        timer.start(200);
        expect(timer, n + 1)?;
    }
    icc::eoir1(spi);
    irq::unmask();
    wait::until(|| irq::count(this()) > gic::SPARE_SPIS as usize);
    wait::settle();
    irq::mask();
    check_eq!(irq::count(this()), 2 + gic::SPARE_SPIS as usize - 1, "interrupts in all");
    Ok(())
}
