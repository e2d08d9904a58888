//! Expectations on interrupts: exactly the given ones are delivered.

use payload::prelude::*;

/// Unmasks until this many interrupts were taken, and a little longer; then these, and no others, must have been taken, in this order.
pub fn taken(intids: &[u32]) -> Outcome {
    let this = smp::this();
    wait::until(|| {
        irq::take();
        irq::count(this) >= intids.len()
    });
    wait::settle();
    irq::take();
    log(this, intids)
}

/// These interrupts, and no others, are in a CPU's log, in this order.
pub fn log(cpu: usize, intids: &[u32]) -> Outcome {
    for (position, intid) in intids.iter().enumerate().take(irq::count(cpu)) {
        check!(irq::nth(cpu, position) == *intid, "CPU {cpu}: interrupt {position} is {}, expected {intid}", irq::nth(cpu, position));
    }
    check!(irq::count(cpu) == intids.len(), "CPU {cpu} took {} interrupts, expected {}", irq::count(cpu), intids.len());
    Ok(())
}

/// Waits until another CPU, which takes interrupts, has taken exactly these.
pub fn taken_on(cpu: usize, intids: &[u32]) -> Outcome {
    wait::until(|| irq::count(cpu) >= intids.len());
    log(cpu, intids)
}

/// Acknowledges: it must be this interrupt.
pub fn acknowledge(intid: u32) -> Outcome {
    wait::until(|| icc::hppir1() == intid);
    check!(icc::hppir1() == intid, "HPPIR1 is {}, expected {intid}", icc::hppir1());
    let got = icc::iar1();
    check!(got == intid, "IAR1 is {got}, expected {intid}");
    Ok(())
}

/// Expects that no interrupt can be acknowledged.
pub fn nothing() -> Outcome {
    wait::settle();
    let pending = irq::is_pending();
    let got = icc::iar1();
    check!(got == icc::SPURIOUS, "IAR1 is {got}, expected nothing");
    check!(!pending, "ISR_EL1.I is set with nothing to acknowledge");
    Ok(())
}

/// Acknowledges and ends interrupts: these, in this order, and no more.
pub fn all(intids: &[u32]) -> Outcome {
    for intid in intids {
        acknowledge(*intid)?;
        icc::eoir1(*intid);
    }
    nothing()
}

/// Makes every CPU take and log interrupts.
pub fn listen_everywhere() -> Outcome {
    smp::on_all(|| {
        gic::reset_cpu();
        Ok(())
    })?;
    for cpu in (0..machine::cpus()).filter(|cpu| *cpu != smp::this()) {
        smp::on(cpu, || {
            irq::unmask();
            Ok(())
        })?;
    }
    Ok(())
}

/// Makes all other CPUs mask interrupts.
pub fn deafen() -> Outcome {
    smp::on_all(|| {
        irq::mask();
        Ok(())
    })
}

/// Skips a test of what a GICv2 does not have.
pub fn gicv3() -> Outcome {
    if machine::is_gicv2() {
        skip!("the machine has a GICv2");
    }
    Ok(())
}
