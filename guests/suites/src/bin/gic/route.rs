//! Routing of SPIs to CPUs.

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::tests;

use crate::expect;

pub const TESTS: &[Test] = tests![
    route_to_each,
    route_changed_while_disabled,
    route_changed_while_pending,
    cleared_for_another_cpu,
    disabled_for_another_cpu,
    taken_by_all,
];

fn spi(n: u32) -> u32 {
    gic::spare_spis().start + n
}

fn route_to_each() -> Outcome {
    smp::start_all()?;
    for cpu in 0..machine::cpus() {
        expect::listen_everywhere()?;
        gic::route(spi(0), cpu);
        gic::set(Bits::Enable, spi(0));
        gic::set(Bits::Pending, spi(0));
        if cpu == smp::this() {
            expect::taken(&[spi(0)])?;
        }
        expect::taken_on(cpu, &[spi(0)])?;
        for other in (0..machine::cpus()).filter(|other| *other != cpu) {
            expect::log(other, &[])?;
        }
        gic::clear(Bits::Enable, spi(0));
    }
    expect::deafen()
}

/// Makes the SPI pending for CPU 1, which has interrupts masked.
fn pend_elsewhere() -> Outcome {
    smp::need(2)?;
    smp::on(1, || {
        gic::reset_cpu();
        Ok(())
    })?;
    gic::route(spi(0), 1);
    gic::set(Bits::Enable, spi(0));
    gic::set(Bits::Pending, spi(0));
    smp::on(1, || {
        check!(wait::until(|| icc::hppir1() == spi(0)), "the SPI does not come to CPU 1");
        Ok(())
    })
}

fn nothing_elsewhere() -> Outcome {
    smp::on(1, || {
        wait::until(|| icc::hppir1() == icc::SPURIOUS);
        expect::nothing()
    })
}

fn route_changed_while_disabled() -> Outcome {
    pend_elsewhere()?;
    gic::clear(Bits::Enable, spi(0));
    gic::route(spi(0), 0);
    gic::set(Bits::Enable, spi(0));
    expect::taken(&[spi(0)])?;
    nothing_elsewhere()
}

fn route_changed_while_pending() -> Outcome {
    pend_elsewhere()?;
    gic::route(spi(0), 0);
    expect::taken(&[spi(0)])?;
    nothing_elsewhere()
}

fn cleared_for_another_cpu() -> Outcome {
    pend_elsewhere()?;
    gic::clear(Bits::Pending, spi(0));
    check!(!gic::get(Bits::Pending, spi(0)), "still pending");
    nothing_elsewhere()
}

fn disabled_for_another_cpu() -> Outcome {
    pend_elsewhere()?;
    gic::clear(Bits::Enable, spi(0));
    nothing_elsewhere()?;
    check!(gic::get(Bits::Pending, spi(0)), "no longer pending");
    gic::set(Bits::Enable, spi(0));
    smp::on(1, || expect::all(&[spi(0)]))
}

/// All spare SPIs, distributed over all CPUs, pending at once: each CPU takes its own, once.
fn taken_by_all() -> Outcome {
    smp::start_all()?;
    expect::listen_everywhere()?;
    let cpus = machine::cpus();
    for (n, intid) in gic::spare_spis().enumerate() {
        gic::route(intid, n % cpus);
        gic::set(Bits::Enable, intid);
    }
    for intid in gic::spare_spis() {
        gic::set(Bits::Pending, intid);
    }
    irq::unmask();
    let count = gic::SPARE_SPIS as usize;
    let late = (0..cpus).find(|cpu| {
        let mine = (0..count).filter(|n| n % cpus == *cpu).count();
        !wait::until(|| irq::count(*cpu) >= mine)
    });
    wait::settle();
    irq::mask();
    if let Some(cpu) = late {
        return Err(Fail::new(format_args!("CPU {cpu} took {} interrupts, too few", irq::count(cpu))));
    }
    let mut seen = 0_u32;
    for cpu in 0..cpus {
        for n in 0..irq::count(cpu) {
            let position = irq::nth(cpu, n).wrapping_sub(spi(0)) as usize;
            check!(position < count && position % cpus == cpu, "CPU {cpu} took {}", irq::nth(cpu, n));
            check!(seen >> position & 1 == 0, "interrupt {} came twice", irq::nth(cpu, n));
            seen |= 1 << position;
        }
    }
    check_eq!(seen, (1 << count) - 1, "interrupts that came");
    expect::deafen()
}
