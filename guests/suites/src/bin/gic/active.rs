//! The active state: both EOI modes, by register, and from another CPU.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    eoi_mode_0,
    eoi_mode_1,
    eoi_mode_1_out_of_order,
    eoi_mode_1_sgi,
    active_by_register,
    active_cleared_by_register,
    active_sgi_and_ppi_by_register,
    active_cleared_by_another_cpu,
    deactivated_by_another_cpu,
];

fn spi(n: u32) -> u32 {
    gic::spare_spis().start + n
}

fn pend(n: u32) {
    gic::set(Bits::Enable, spi(n));
    gic::set(Bits::Pending, spi(n));
}

fn eoi_mode_0() -> Outcome {
    pend(0);
    expect::acknowledge(spi(0))?;
    check!(gic::get(Bits::Active, spi(0)), "not active after the acknowledgement");
    check_eq!(icc::rpr(), u64::from(gic::PRIORITY), "ICC_RPR_EL1");
    icc::eoir1(spi(0));
    check!(!gic::get(Bits::Active, spi(0)), "active after its end");
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1 after its end");
    Ok(())
}

fn eoi_mode_1() -> Outcome {
    icc::set_ctlr(icc::CTLR_EOIMODE);
    pend(0);
    expect::acknowledge(spi(0))?;
    icc::eoir1(spi(0));
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1 after the priority drop");
    check!(gic::get(Bits::Active, spi(0)), "not active after the priority drop");
    // Another one of the same priority is delivered in between.
    pend(1);
    expect::acknowledge(spi(1))?;
    icc::eoir1(spi(1));
    icc::dir(spi(1));
    // Active: it is not signalled again, but stays pending.
    pend(0);
    expect::nothing()?;
    check!(gic::get(Bits::Pending, spi(0)), "not pending again");
    icc::dir(spi(0));
    expect::acknowledge(spi(0))?;
    icc::eoir1(spi(0));
    icc::dir(spi(0));
    check!(!gic::get(Bits::Active, spi(0)), "active after its deactivation");
    expect::nothing()
}

/// More active interrupts than list registers, deactivated in another order than acknowledged.
fn eoi_mode_1_out_of_order() -> Outcome {
    const COUNT: u32 = 20;
    icc::set_ctlr(icc::CTLR_EOIMODE);
    for n in 0..COUNT {
        pend(n);
        expect::acknowledge(spi(n))?;
        icc::eoir1(spi(n));
    }
    for n in 0..COUNT {
        check!(gic::get(Bits::Active, spi(n)), "SPI {} is not active", spi(n));
        pend(n);
    }
    expect::nothing()?;
    for n in (0..COUNT).map(|n| (n * 7) % COUNT) {
        icc::dir(spi(n));
        check!(!gic::get(Bits::Active, spi(n)), "SPI {} is active after its deactivation", spi(n));
        expect::acknowledge(spi(n))?;
        icc::eoir1(spi(n));
        icc::dir(spi(n));
    }
    expect::nothing()
}

fn eoi_mode_1_sgi() -> Outcome {
    icc::set_ctlr(icc::CTLR_EOIMODE);
    gic::set(Bits::Enable, 1);
    icc::sgi(1, 1 << smp::this());
    expect::acknowledge(1)?;
    icc::eoir1(1);
    icc::sgi(1, 1 << smp::this());
    expect::nothing()?;
    icc::dir(1);
    expect::acknowledge(1)?;
    icc::eoir1(1);
    icc::dir(1);
    expect::nothing()
}

fn active_by_register() -> Outcome {
    gic::set(Bits::Active, spi(0));
    pend(0);
    expect::nothing()?;
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1: the active bit alone has no running priority");
    gic::clear(Bits::Active, spi(0));
    expect::all(&[spi(0)])
}

fn active_cleared_by_register() -> Outcome {
    icc::set_ctlr(icc::CTLR_EOIMODE);
    pend(0);
    expect::acknowledge(spi(0))?;
    icc::eoir1(spi(0));
    pend(0);
    gic::clear(Bits::Active, spi(0));
    check!(!gic::get(Bits::Active, spi(0)), "active after it was cleared");
    expect::acknowledge(spi(0))?;
    icc::eoir1(spi(0));
    icc::dir(spi(0));
    expect::nothing()
}

fn active_sgi_and_ppi_by_register() -> Outcome {
    for intid in [8, 21] {
        gic::set(Bits::Enable, intid);
        gic::set(Bits::Active, intid);
        gic::pend_private(intid);
        expect::nothing()?;
        gic::clear(Bits::Active, intid);
        expect::all(&[intid])?;
    }
    Ok(())
}

/// Leaves SPI 0 active on CPU 1, its priority dropped.
fn activate_on_other() -> Outcome {
    smp::need(2)?;
    smp::on(1, || {
        gic::reset_cpu();
        icc::set_ctlr(icc::CTLR_EOIMODE);
        Ok(())
    })?;
    gic::route(spi(0), 1);
    pend(0);
    smp::on(1, take_on_other)?;
    check!(gic::get(Bits::Active, spi(0)), "not active on the other CPU");
    pend(0);
    wait::settle();
    smp::on(1, expect::nothing)
}

fn take_on_other() -> Outcome {
    expect::acknowledge(spi(0))?;
    icc::eoir1(spi(0));
    Ok(())
}

/// SPI 0, pending again, is delivered to CPU 1 once it is no longer active.
fn comes_again_on_other() -> Outcome {
    check!(!gic::get(Bits::Active, spi(0)), "still active");
    smp::on(1, || {
        take_on_other()?;
        icc::dir(spi(0));
        expect::nothing()
    })
}

fn active_cleared_by_another_cpu() -> Outcome {
    activate_on_other()?;
    gic::clear(Bits::Active, spi(0));
    comes_again_on_other()
}

/// An SPI may be deactivated by another CPU than the one that acknowledged it.
fn deactivated_by_another_cpu() -> Outcome {
    // A GICv2's GICC_DIR always traps.
    if machine::is_stile() && !machine::is_gicv2() {
        skip!("a known limit of Stile: docs/guests.md");
    }
    activate_on_other()?;
    icc::set_ctlr(icc::CTLR_EOIMODE);
    icc::dir(spi(0));
    wait::until(|| !gic::get(Bits::Active, spi(0)));
    comes_again_on_other()
}
