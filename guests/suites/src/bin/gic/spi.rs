//! Shared peripheral interrupts, set pending by register: edge and level, disabled, cleared.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    spi_edge,
    spi_level_latch,
    spi_every_one,
    spi_pending_while_active,
    spi_pending_twice_while_active,
    spi_disabled_while_pending,
    spi_cleared_while_pending,
    spi_cleared_while_pending_and_active,
    spi_disabled_while_active,
    spi_many_times,
];

fn spi() -> u32 {
    gic::spare_spis().start
}

fn spi_edge() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    expect::taken(&[spi()])?;
    check!(!gic::get(Bits::Pending, spi()), "still pending after it was taken");
    check!(!gic::get(Bits::Active, spi()), "still active after it was ended");
    Ok(())
}

fn spi_level_latch() -> Outcome {
    gic::set_edge(spi(), false);
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    check!(gic::get(Bits::Pending, spi()), "not pending after it was set");
    expect::acknowledge(spi())?;
    check!(!gic::get(Bits::Pending, spi()), "the latch outlives the acknowledgement");
    check!(gic::get(Bits::Active, spi()), "not active after the acknowledgement");
    icc::eoir1(spi());
    expect::nothing()
}

fn spi_every_one() -> Outcome {
    for intid in gic::spare_spis() {
        gic::set(Bits::Enable, intid);
        gic::set(Bits::Pending, intid);
        expect::all(&[intid])?;
    }
    Ok(())
}

fn spi_pending_while_active() -> Outcome {
    for edge in [true, false] {
        gic::clear(Bits::Enable, spi());
        gic::set_edge(spi(), edge);
        gic::set(Bits::Enable, spi());
        gic::set(Bits::Pending, spi());
        expect::acknowledge(spi())?;
        gic::set(Bits::Pending, spi());
        check!(gic::get(Bits::Pending, spi()), "not pending again while active, edge {edge}");
        check!(gic::get(Bits::Active, spi()), "not active any more, edge {edge}");
        expect::nothing()?;
        icc::eoir1(spi());
        expect::all(&[spi()])?;
    }
    Ok(())
}

fn spi_pending_twice_while_active() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    expect::acknowledge(spi())?;
    gic::set(Bits::Pending, spi());
    gic::set(Bits::Pending, spi());
    icc::eoir1(spi());
    expect::all(&[spi()])
}

fn spi_disabled_while_pending() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    gic::clear(Bits::Enable, spi());
    expect::nothing()?;
    check!(gic::get(Bits::Pending, spi()), "no longer pending after it was disabled");
    gic::set(Bits::Enable, spi());
    expect::taken(&[spi()])
}

fn spi_cleared_while_pending() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    gic::clear(Bits::Pending, spi());
    check!(!gic::get(Bits::Pending, spi()), "still pending after it was cleared");
    expect::nothing()
}

fn spi_cleared_while_pending_and_active() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    expect::acknowledge(spi())?;
    gic::set(Bits::Pending, spi());
    gic::clear(Bits::Pending, spi());
    check!(gic::get(Bits::Active, spi()), "no longer active after its pending bit was cleared");
    icc::eoir1(spi());
    expect::nothing()
}

fn spi_disabled_while_active() -> Outcome {
    gic::set(Bits::Enable, spi());
    gic::set(Bits::Pending, spi());
    expect::acknowledge(spi())?;
    gic::clear(Bits::Enable, spi());
    check!(gic::get(Bits::Active, spi()), "no longer active after it was disabled");
    gic::set(Bits::Pending, spi());
    icc::eoir1(spi());
    check!(!gic::get(Bits::Active, spi()), "still active after it was ended");
    expect::nothing()?;
    gic::set(Bits::Enable, spi());
    expect::all(&[spi()])
}

fn spi_many_times() -> Outcome {
    gic::set(Bits::Enable, spi());
    irq::unmask();
    for round in 1..=500 {
        gic::set(Bits::Pending, spi());
        check!(wait::until(|| irq::count(0) == round), "{} interrupts after {round}", irq::count(0));
    }
    irq::mask();
    Ok(())
}
