//! A state in which the guest can continue.

use payload::encode::Sysreg;
use payload::prelude::*;
use payload::timer::Timer;
use payload::{probe, uart};

/// Restores all CPUs and devices to a state in which the guest can continue.
pub fn restore() -> Outcome {
    uart::init();
    smp::on_all(|| {
        restore_cpu();
        Ok(())
    })?;
    gic::reset();
    smp::on_all(|| {
        gic::reset_cpu();
        Ok(())
    })
}

/// Restores the registers of this CPU, and its timers.
pub fn restore_cpu() {
    /// Back to 0, where they exist: ALLINT, PAN, UAO, SVCR, MDSCR_EL1, OSLAR_EL1, OSDLR_EL1, PMCR_EL0, CNTKCTL_EL1.
    const ZERO: [Sysreg; 9] = [
        Sysreg::new(3, 0, 4, 3, 0),
        Sysreg::new(3, 0, 4, 2, 3),
        Sysreg::new(3, 0, 4, 2, 4),
        Sysreg::new(3, 3, 4, 2, 2),
        Sysreg::new(2, 0, 0, 2, 2),
        Sysreg::new(2, 0, 1, 0, 4),
        Sysreg::new(2, 0, 1, 3, 4),
        Sysreg::new(3, 3, 9, 12, 0),
        Sysreg::new(3, 0, 14, 1, 0),
    ];
    irq::mask();
    // The active priorities, ICC_AP0R<n>_EL1 and ICC_AP1R<n>_EL1, too: a stale one would mask interrupts.
    let priorities = (0..4).flat_map(|n| [Sysreg::new(3, 0, 12, 8, 4 + n), Sysreg::new(3, 0, 12, 9, n)]);
    for register in ZERO.into_iter().chain(priorities) {
        probe::one(register.write(0), 0);
    }
    // FP, SVE and SME are enabled; absent ones are RES0.
    msr!("CPACR_EL1", 3 << 20 | 3 << 16 | 3 << 24);
    for timer in Timer::ALL {
        timer.stop();
    }
}
