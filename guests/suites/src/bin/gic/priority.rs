//! Priorities: order, mask, preemption, grouping.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    priority_order,
    priority_changed_while_pending,
    priority_mask,
    priority_mask_raised_later,
    running_priority,
    preemption,
    no_preemption_by_equals,
    binary_point_groups,
    binary_point_out_of_range,
    nested_handlers,
];

fn spi(n: u32) -> u32 {
    gic::spare_spis().start + n
}

/// Enables the n-th spare SPI with a priority.
fn prepare(n: u32, priority: u8) {
    gic::set_priority(spi(n), priority);
    gic::set(Bits::Enable, spi(n));
}

fn pend(n: u32) {
    gic::set(Bits::Pending, spi(n));
}

fn priority_order() -> Outcome {
    for (n, priority) in [(0, 0x80), (1, 0x20), (2, 0xC0), (3, 0x00)] {
        prepare(n, priority);
        pend(n);
    }
    gic::set_priority(4, 0x50);
    gic::set(Bits::Enable, 4);
    icc::sgi(4, 1 << smp::this());
    expect::all(&[spi(3), spi(1), 4, spi(0), spi(2)])
}

/// The architecture permits the new priority of a pending interrupt to take effect late: it is set while the
/// interrupt is disabled.
fn priority_changed_while_pending() -> Outcome {
    prepare(0, 0x40);
    prepare(1, 0x80);
    pend(0);
    pend(1);
    gic::clear(Bits::Enable, spi(0));
    gic::set_priority(spi(0), 0xC0);
    gic::set(Bits::Enable, spi(0));
    expect::all(&[spi(1), spi(0)])
}

fn priority_mask() -> Outcome {
    prepare(0, 0x80);
    icc::set_pmr(0x80);
    pend(0);
    expect::nothing()?;
    icc::set_pmr(0x70);
    expect::nothing()?;
    icc::set_pmr(0x90);
    expect::all(&[spi(0)])
}

fn priority_mask_raised_later() -> Outcome {
    icc::set_pmr(0);
    for n in 0..8 {
        prepare(n, 0x10 * (n as u8 + 1));
        pend(n);
    }
    expect::nothing()?;
    for n in 0..8 {
        icc::set_pmr(0x10 * (u64::from(n) + 1) + 0x08);
        expect::all(&[spi(n)])?;
    }
    Ok(())
}

fn running_priority() -> Outcome {
    icc::set_bpr1(0);
    for (n, priority) in [(0, 0xC0), (1, 0x80), (2, 0x40)] {
        prepare(n, priority);
        pend(n);
        expect::acknowledge(spi(n))?;
        check_eq!(icc::rpr(), u64::from(priority), "ICC_RPR_EL1");
    }
    for (n, priority) in [(2, 0x80), (1, 0xC0), (0, icc::IDLE)] {
        icc::eoir1(spi(n));
        check_eq!(icc::rpr(), priority, "ICC_RPR_EL1 after the end");
    }
    Ok(())
}

fn preemption() -> Outcome {
    icc::set_bpr1(0);
    prepare(0, 0x80);
    prepare(1, 0x40);
    prepare(2, 0xC0);
    pend(0);
    expect::acknowledge(spi(0))?;
    pend(2);
    expect::nothing()?;
    pend(1);
    expect::acknowledge(spi(1))?;
    icc::eoir1(spi(1));
    expect::nothing()?;
    icc::eoir1(spi(0));
    expect::all(&[spi(2)])
}

fn no_preemption_by_equals() -> Outcome {
    icc::set_bpr1(0);
    prepare(0, 0x80);
    prepare(1, 0x80);
    pend(0);
    expect::acknowledge(spi(0))?;
    pend(1);
    expect::nothing()?;
    icc::eoir1(spi(0));
    expect::all(&[spi(1)])
}

/// Priority bits below the binary point order pending interrupts, but do not preempt.
fn binary_point_groups() -> Outcome {
    icc::set_bpr1(5);
    prepare(0, 0x90);
    prepare(1, 0x80);
    prepare(2, 0x40);
    pend(0);
    expect::acknowledge(spi(0))?;
    pend(1);
    expect::nothing()?;
    pend(2);
    expect::acknowledge(spi(2))?;
    icc::eoir1(spi(2));
    icc::eoir1(spi(0));
    pend(0);
    expect::all(&[spi(1), spi(0)])
}

/// A reserved binary point, with an interrupt active and one of higher priority pending: without `binary_point = "common"`
/// it ends QEMU.
fn binary_point_out_of_range() -> Outcome {
    if !machine::is_stile() {
        skip!("the interface is the emulator's own");
    }
    if icc::ctlr() & icc::CTLR_CBPR == 0 {
        skip!("the VM has a binary point of its own");
    }
    icc::set_bpr1(0);
    let before = icc::bpr1();
    prepare(0, 0x80);
    prepare(1, 0x40);
    pend(0);
    expect::acknowledge(spi(0))?;
    icc::write_bpr1(8);
    pend(1);
    expect::acknowledge(spi(1))?;
    check_eq!(icc::bpr1(), before, "ICC_BPR1_EL1 after 8");
    check_eq!(icc::rpr(), 0x40, "ICC_RPR_EL1");
    icc::eoir1(spi(1));
    icc::eoir1(spi(0));
    expect::nothing()
}

/// Each handler makes an interrupt of higher priority pending and unmasks interrupts.
fn nested_handlers() -> Outcome {
    const DEPTH: u32 = 8;
    icc::set_bpr1(0);
    for n in 0..DEPTH {
        prepare(n, 0xC0 - 0x10 * n as u8);
    }
    irq::set_hook(|intid| {
        if intid + 1 < spi(DEPTH) {
            gic::set(Bits::Pending, intid + 1);
            wait::until(|| {
                irq::take();
                irq::count(smp::this()) > (intid + 1 - spi(0)) as usize
            });
        }
    });
    pend(0);
    let all: [u32; DEPTH as usize] = core::array::from_fn(|n| spi(n as u32));
    expect::taken(&all)?;
    check_eq!(icc::rpr(), icc::IDLE, "ICC_RPR_EL1 after all ended");
    Ok(())
}
