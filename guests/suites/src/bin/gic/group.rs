//! Interrupt groups and their enables.

use payload::gic::{Bits, GICD_CTLR};
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] =
    tests![group_off_at_cpu, group_off_at_distributor, group_off_while_pending, group_0_is_not_group_1, group_0_is_fiq,];

fn spi() -> u32 {
    gic::spare_spis().start
}

fn pend() {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
}

fn group_off_at_cpu() -> Outcome {
    icc::set_group1(false);
    pend();
    expect::nothing()?;
    icc::set_group1(true);
    expect::taken(&[spi()])
}

fn group_off_at_distributor() -> Outcome {
    GICD_CTLR.write(gic::control_off());
    pend();
    gic::set(Bits::Enable, 2);
    icc::sgi(2, 1 << smp::this());
    expect::nothing()?;
    check!(gic::get(Bits::Pending, spi()), "the SPI is not pending");
    GICD_CTLR.write(gic::control_on());
    gic::set_priority(2, 0x20);
    wait::until(|| {
        irq::take();
        irq::count(smp::this()) >= 2
    });
    check_eq!(irq::count(smp::this()), 2, "number of interrupts after the group was turned on");
    Ok(())
}

fn group_off_while_pending() -> Outcome {
    pend();
    wait::until(irq::is_pending);
    check!(irq::is_pending(), "ISR_EL1.I is 0 with an interrupt pending");
    GICD_CTLR.write(gic::control_off());
    expect::nothing()?;
    GICD_CTLR.write(gic::control_on());
    expect::all(&[spi()])
}

/// Puts the SPI in group 0, or skips the test if group 0 doesn't exist.
fn use_group_0() -> Outcome {
    expect::gicv3()?;
    gic::set_group1(spi(), false);
    if gic::get(Bits::Group, spi()) {
        skip!("IGROUPR can't be written");
    }
    Ok(())
}

fn group_0_is_not_group_1() -> Outcome {
    use_group_0()?;
    pend();
    expect::nothing()?;
    gic::set_group1(spi(), true);
    expect::all(&[spi()])
}

fn group_0_is_fiq() -> Outcome {
    use_group_0()?;
    GICD_CTLR.write(gic::CTLR_ARE | gic::CTLR_DS | gic::CTLR_GROUP1 | 1);
    icc::set_group0(true);
    pend();
    wait::until(|| mrs!("ISR_EL1") & 1 << 6 != 0);
    check_eq!(mrs!("ISR_EL1") & (1 << 6 | 1 << 7), 1 << 6, "ISR_EL1.F and I");
    check!(icc::iar1() >= 1020, "IAR1 acknowledged an interrupt of group 0");
    // ICC_IAR0_EL1, ICC_EOIR0_EL1.
    check_eq!(mrs!("S3_0_C12_C8_0"), u64::from(spi()), "ICC_IAR0_EL1");
    msr!("S3_0_C12_C8_1", u64::from(spi()));
    check_eq!(mrs!("S3_0_C12_C8_0"), u64::from(icc::SPURIOUS), "ICC_IAR0_EL1 after the end");
    icc::set_group0(false);
    Ok(())
}
