//! PL031: it counts seconds, can be set, and interrupts at a time.

use payload::board::RTC_INTID;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;
use payload::uart::pl031::*;

use crate::{identification, listen};

pub const TESTS: &[Test] = tests![clock_identification, clock_counts, clock_set, clock_interrupt];

fn clock_identification() -> Outcome {
    identification(PERIPH_ID, [0x31, 0x10, 0x14, 0x00])?;
    identification(CELL_ID, [0x0D, 0xF0, 0x05, 0xB1])
}

fn clock_counts() -> Outcome {
    let start = DR.read();
    check!(wait::until(|| DR.read() != start), "RTCDR stays {start}");
    check_eq!(DR.read().wrapping_sub(start), 1, "seconds that passed");
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
    MR.write(DR.read().wrapping_add(2));
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
