//! EL2's state between tests.

use payload::prelude::*;
use payload::timer::Timer;

use crate::{debug, fine, lists};

/// Restores this CPU's EL2 state, and the GIC, before a test.
pub fn prepare() {
    gic::reset();
    restore();
}

/// Restores this CPU's EL2 state after a test.
pub fn restore() {
    msr!("HCR_EL2", payload::entry::HCR);
    lists::reset();
    for timer in Timer::ALL {
        timer.stop();
    }
    msr!("CPTR_EL2", 3 << 20);
    msr!("MDCR_EL2", 0);
    msr!("HSTR_EL2", 0);
    msr!("CNTVOFF_EL2", 0);
    fine::restore();
    debug::restore();
}
