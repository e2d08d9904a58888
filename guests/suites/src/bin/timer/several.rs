//! Concurrent timers: both of a CPU, and those of all CPUs.

use payload::harness::Test;
use payload::prelude::*;
use payload::random::Random;
use payload::tests;
use payload::timer::Timer;

use crate::each;

pub const TESTS: &[Test] = tests![both_at_once, all_cpus, all_cpus_in_wfi, own_registers];

fn both_at_once() -> Outcome {
    let this = smp::this();
    for round in 1..=50 {
        for timer in Timer::ALL {
            timer.start(200);
        }
        irq::unmask();
        wait::until(|| irq::count(this) >= 2 * round);
        irq::mask();
        check_eq!(irq::count(this), 2 * round, "interrupts");
        let last = [irq::nth(this, 2 * round - 2), irq::nth(this, 2 * round - 1)];
        let [one, other] = Timer::ALL.map(Timer::intid);
        check!(last == [one, other] || last == [other, one], "interrupts {last:?}");
    }
    Ok(())
}

fn prepare() {
    gic::reset_cpu();
    each::listen();
}

/// Each CPU has its own timers and its own, different, delays.
fn all_cpus() -> Outcome {
    smp::on_all(|| {
        prepare();
        let this = smp::this();
        let mut random = Random::new(this as u64);
        let mut outcome = Ok(());
        irq::unmask();
        for shot in 1..=100 {
            let timer = random.pick(&Timer::ALL);
            timer.start(50 + random.below(400));
            let deadline = timer.deadline();
            wait::until(|| irq::count(this) >= shot);
            let now = timer.count();
            if irq::count(this) != shot || irq::nth(this, shot - 1) != timer.intid() || now < deadline {
                outcome = Err(Fail::new(format_args!(
                    "CPU {this}: {timer:?}: {} interrupts, expected {shot}; {now:#x}, deadline {deadline:#x}",
                    irq::count(this)
                )));
                break;
            }
        }
        irq::mask();
        outcome
    })
}

fn all_cpus_in_wfi() -> Outcome {
    smp::on_all(|| {
        prepare();
        let this = smp::this();
        let mut random = Random::new(100 + this as u64);
        for shot in 1..=50 {
            let timer = random.pick(&Timer::ALL);
            timer.start(50 + random.below(2_000));
            while irq::count(this) < shot {
                payload::instruction!("wfi");
                irq::take();
            }
        }
        Ok(())
    })
}

/// A CPU's writes to its timers are not visible to others.
fn own_registers() -> Outcome {
    smp::need(2)?;
    static BARRIER: smp::Barrier = smp::Barrier::new();
    smp::on_all(|| {
        let deadline = |timer: Timer| (u64::MAX >> 1) - 16 * smp::this() as u64 - timer.intid() as u64;
        for timer in Timer::ALL {
            timer.stop();
            timer.set_deadline(deadline(timer));
        }
        BARRIER.wait()?;
        for timer in Timer::ALL {
            check_eq!(timer.deadline(), deadline(timer), "CPU {}: {timer:?} CVAL", smp::this());
        }
        BARRIER.wait()
    })
}
