//! The counters.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::harness::Test;
use payload::prelude::*;
use payload::tests;
use payload::timer::Timer;

pub const TESTS: &[Test] = tests![frequency, counters_advance, counters_agree, counter_same_for_all];

fn frequency() -> Outcome {
    let hertz = wait::frequency();
    check!((1_000_000..=10_000_000_000).contains(&hertz), "CNTFRQ_EL0 is {hertz}");
    // Equal on all CPUs.
    smp::on_all(|| {
        static FIRST: AtomicU64 = AtomicU64::new(0);
        let mine = wait::frequency();
        let first = FIRST.compare_exchange(0, mine, AcqRel, Acquire).unwrap_or_else(|first| first);
        check!(first == 0 || first == mine, "CNTFRQ_EL0 is {mine}, on another CPU {first}");
        Ok(())
    })
}

fn counters_advance() -> Outcome {
    for timer in Timer::ALL {
        let start = timer.count();
        check!(wait::until(|| timer.count() > start), "the {timer:?} counter stands still");
        let mut last = start;
        for _ in 0..10_000 {
            let now = timer.count();
            check!(now >= last, "the {timer:?} counter went back from {last:#x} to {now:#x}");
            last = now;
        }
    }
    Ok(())
}

/// Virtual and physical count differ by a constant offset.
fn counters_agree() -> Outcome {
    // Between two readings of one, the other's must fit: this bounds the offset from both sides.
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    for _ in 0..1_000 {
        let before = Timer::Virtual.count();
        let physical = Timer::Physical.count();
        let after = Timer::Virtual.count();
        low = low.max(physical.wrapping_sub(after) as i64);
        high = high.min(physical.wrapping_sub(before) as i64);
    }
    check!(low <= high, "CNTPCT - CNTVCT is at least {low} and at most {high}");
    Ok(())
}

/// CPUs alternate; the count that one reads is never before the count that the previous one read.
fn counter_same_for_all() -> Outcome {
    static TURN: AtomicU64 = AtomicU64::new(0);
    static LAST: AtomicU64 = AtomicU64::new(0);
    const TURNS: u64 = 100;
    smp::need(2)?;
    TURN.store(0, Release);
    LAST.store(0, Release);
    smp::on_all(|| {
        let cpus = machine::cpus() as u64;
        let this = smp::this() as u64;
        for turn in (0..TURNS * cpus).filter(|turn| turn % cpus == this) {
            check!(wait::until(|| TURN.load(Acquire) == turn), "turn {turn} does not come");
            let now = wait::now();
            let last = LAST.swap(now, AcqRel);
            TURN.store(turn + 1, Release);
            check!(now >= last, "CNTVCT is {now:#x} after another CPU read {last:#x}");
        }
        Ok(())
    })
}
