//! Each timer's registers, without interrupts.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;
use payload::timer::{ENABLE, IMASK, ISTATUS, Timer};

pub const TESTS: &[Test] = tests![control_bits, compare_and_left, status_follows_count, status_masked, status_disabled, far_deadline];

/// Enables this CPU's timer interrupts; the handler stops the timer that fired.
pub fn listen() {
    for timer in Timer::ALL {
        gic::set(Bits::Enable, timer.intid());
    }
    irq::set_hook(|intid| {
        if let Some(timer) = Timer::of(intid) {
            timer.stop();
        }
    });
}

fn control_bits() -> Outcome {
    for timer in Timer::ALL {
        timer.set_deadline(u64::MAX);
        for value in [0, ENABLE | IMASK, IMASK, ENABLE] {
            timer.set_control(value);
            check_eq!(timer.control(), value, "{timer:?} CTL");
        }
        // ISTATUS can't be written.
        timer.set_control(IMASK | ENABLE | ISTATUS);
        check_eq!(timer.control(), IMASK | ENABLE, "{timer:?} CTL after ISTATUS was written");
        timer.stop();
    }
    Ok(())
}

fn compare_and_left() -> Outcome {
    for timer in Timer::ALL {
        for value in [0, 1, 0x1234_5678_9ABC_DEF0, u64::MAX] {
            timer.set_deadline(value);
            check_eq!(timer.deadline(), value, "{timer:?} CVAL");
        }
        // TVAL is a view of CVAL, signed and relative.
        for ticks in [0, 1_000_000, i32::MAX, -1, -1_000_000] {
            let before = timer.count();
            timer.set_left(ticks);
            let after = timer.count();
            let deadline = timer.deadline();
            let low = before.wrapping_add(ticks as u64);
            let high = after.wrapping_add(ticks as u64);
            check!(deadline.wrapping_sub(low) <= high.wrapping_sub(low), "{timer:?} CVAL {deadline:#x} after TVAL {ticks}");
        }
        let before = timer.count();
        timer.set_deadline(before + 1_000_000_000);
        let left = timer.left();
        let passed = timer.count() - before;
        check!(left <= 1_000_000_000 && i64::from(left) >= 1_000_000_000 - passed as i64, "{timer:?} TVAL is {left}");
    }
    Ok(())
}

fn status_follows_count() -> Outcome {
    for timer in Timer::ALL {
        timer.set_deadline(timer.count() + wait::ticks(2_000));
        timer.set_control(ENABLE | IMASK);
        check!(wait::until(|| timer.control() & ISTATUS != 0), "{timer:?} ISTATUS does not become 1");
        check!(timer.count() >= timer.deadline(), "{timer:?} ISTATUS is 1 before the deadline");
        timer.set_deadline(u64::MAX);
        check_eq!(timer.control(), ENABLE | IMASK, "{timer:?} CTL after the deadline moved away");
        timer.set_deadline(0);
        check_eq!(timer.control(), ENABLE | IMASK | ISTATUS, "{timer:?} CTL with the deadline long past");
        timer.stop();
    }
    Ok(())
}

fn status_masked() -> Outcome {
    for timer in Timer::ALL {
        timer.set_deadline(0);
        timer.set_control(ENABLE | IMASK);
        wait::settle();
        check!(!irq::is_pending(), "{timer:?}: an interrupt although IMASK is 1");
        check!(!gic::get(Bits::Pending, timer.intid()), "{timer:?}: pending although IMASK is 1");
        timer.stop();
    }
    Ok(())
}

fn status_disabled() -> Outcome {
    for timer in Timer::ALL {
        timer.set_deadline(0);
        timer.set_control(0);
        wait::settle();
        check!(!irq::is_pending(), "{timer:?}: an interrupt although ENABLE is 0");
    }
    Ok(())
}

fn far_deadline() -> Outcome {
    for timer in Timer::ALL {
        for deadline in [u64::MAX, timer.count() + (1 << 40)] {
            timer.set_deadline(deadline);
            timer.set_control(ENABLE);
            wait::spin(2_000);
            check!(!irq::is_pending(), "{timer:?}: an interrupt with the deadline at {deadline:#x}");
            check_eq!(timer.control(), ENABLE, "{timer:?} CTL");
        }
        timer.stop();
    }
    Ok(())
}
