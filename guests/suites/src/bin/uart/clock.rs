//! PL031: it counts seconds, can be set, and interrupts at a time.

use payload::board::RTC_INTID;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;
use payload::uart::pl031::*;

use crate::identification::identification;
use crate::listen::listen;

pub const TESTS: &[Test] = tests![clock_identification, clock_counts, clock_set, clock_interrupt];

fn clock_identification() -> Outcome {
    identification(PERIPH_ID, [0x31, 0x10, 0x14, 0x00])?;
    identification(CELL_ID, [0x0D, 0xF0, 0x05, 0xB1])
}

fn clock_counts() -> Outcome {
    // The counter is read around RTCDR: a host that stalls may let any time pass between two instructions.
    let begin = wait::now();
    let start = DR.read();
    let first = wait::now();
    let mut last = start;
    let mut before = first;
    let changed = wait::until(|| {
        before = wait::now();
        last = DR.read();
        last != start
    });
    check!(changed, "RTCDR stays {start}");
    let (least, most) = (before.saturating_sub(first) / wait::frequency(), (wait::now() - begin) / wait::frequency() + 1);
    let passed = u64::from(last.wrapping_sub(start));
    check!((least.max(1)..=most).contains(&passed), "{passed} seconds passed, expected {least} to {most}");
    check_eq!(CR.read() & 1, 1, "RTCCR");
    Ok(())
}

fn clock_set() -> Outcome {
    let before = DR.read();
    LR.write(1_000_000);
    check_eq!(LR.read(), 1_000_000, "RTCLR");
    let now = DR.read();
    check!((1_000_000..1_000_100).contains(&now), "RTCDR is {now} after it was set to 1000000");
    LR.write(before);
    Ok(())
}

fn clock_interrupt() -> Outcome {
    listen(RTC_INTID);
    ICR.write(1);
    IMSC.write(1);
    // A second that has passed before it is set comes again in 136 years.
    let mut ahead = 2;
    loop {
        let alarm = DR.read().wrapping_add(ahead);
        MR.write(alarm);
        if (DR.read().wrapping_sub(alarm) as i32) < 0 || RIS.read() & 1 != 0 {
            break;
        }
        ahead *= 2;
    }
    check!(wait::until(irq::is_pending), "no interrupt");
    check_eq!(RIS.read() & MIS.read() & 1, 1, "RTCRIS and RTCMIS");
    check_eq!(icc::iar1(), RTC_INTID, "IAR1");
    ICR.write(1);
    check_eq!(RIS.read() & 1, 0, "RTCRIS after it was cleared");
    icc::eoir1(RTC_INTID);
    IMSC.write(0);
    check!(wait::until(|| !irq::is_pending()), "the interrupt stays");
    Ok(())
}
