//! CPU_SUSPEND.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use payload::gic::Bits;
use payload::harness::Test;
use payload::prelude::*;
use payload::psci::{self, id};
use payload::timer::Timer;
use payload::{entry, tests};

pub const TESTS: &[Test] = tests![standby, standby_with_pending, invalid_state, power_down];

/// Arms the virtual timer, whose interrupt is enabled at the GIC and masked by PSTATE.
fn arm(microseconds: u64) {
    gic::set(Bits::Enable, Timer::Virtual.intid());
    Timer::Virtual.start(microseconds);
}

fn standby() -> Outcome {
    for function in [id::CPU_SUSPEND, id::CPU_SUSPEND_32] {
        arm(2_000);
        // A standby may end early, as WFI may.
        wait::until(|| psci::call(function, [0, 0, 0]) != psci::SUCCESS || irq::is_pending());
        check!(irq::is_pending(), "{function:#x} returned an error");
        Timer::Virtual.stop();
    }
    Ok(())
}

fn standby_with_pending() -> Outcome {
    arm(0);
    check!(wait::until(irq::is_pending), "the timer does not fire");
    check_eq!(psci::call(id::CPU_SUSPEND, [0, 0, 0]), psci::SUCCESS, "CPU_SUSPEND with an interrupt pending");
    check_eq!(irq::count(smp::this()), 0, "interrupts taken while masked");
    Timer::Virtual.stop();
    Ok(())
}

fn invalid_state() -> Outcome {
    arm(2_000);
    // Reserved bits of the original format.
    let result = psci::call(id::CPU_SUSPEND, [0xFC00_0000, 0, 0]);
    Timer::Virtual.stop();
    check!(result == psci::INVALID_PARAMETERS, "CPU_SUSPEND with reserved bits returned {result}");
    Ok(())
}

/// A power-down state resumes at its entry point, or is treated as standby and returns.
fn power_down() -> Outcome {
    const CONTEXT: u64 = 0x5151;
    static TRIED: AtomicBool = AtomicBool::new(false);
    smp::need(2)?;
    smp::on(1, || {
        // A CPU that arrives at the start code resumes its unfinished work.
        if TRIED.swap(true, Relaxed) {
            let Some(entry) = smp::entry(1) else { return Err(Fail::new(format_args!("no entry state"))) };
            check!(entry.is_clean(), "not entered with the MMU off and exceptions masked");
            check_eq!(entry.x0, CONTEXT, "context");
            return Ok(());
        }
        gic::reset_cpu();
        arm(2_000);
        let result = psci::call(id::CPU_SUSPEND, [1 << 16, entry::start_address(), CONTEXT]);
        Timer::Virtual.stop();
        check!(result == psci::SUCCESS || result == psci::INVALID_PARAMETERS, "CPU_SUSPEND to power-down returned {result}");
        skip!("power-down is taken as a standby, or refused")
    })
}
