//! Latency of the virtual timer: from its deadline to the handler's counter read, its second instruction.

use crate::arch::platform::Platform;
use crate::arch::sysreg::{instruction, msr};
use crate::arch::{cpu, measure};

/// Microseconds to the deadline: sufficient for any hypervisor to put the CPU to sleep.
const AHEAD: u64 = 50;
/// CNTV_CTL_EL0.ENABLE.
const ENABLE: u64 = 1;

fn latency(n: u64, wait: fn(u64)) -> u64 {
    (0..n)
        .map(|turn| {
            measure::shift_phase(turn);
            let before = cpu::taken(0);
            let deadline = cpu::now() + cpu::ticks(AHEAD);
            msr!("cntv_cval_el0", deadline);
            msr!("cntv_ctl_el0", ENABLE);
            wait(before);
            cpu::stamp(0).saturating_sub(deadline)
        })
        .sum()
}

/// With the CPU running.
pub fn running(_platform: &Platform, n: u64) -> u64 {
    cpu::unmask();
    let ticks = latency(n, |before| while cpu::taken(0) == before {});
    cpu::mask();
    ticks
}

/// With the CPU in WFI.
pub fn waiting(_platform: &Platform, n: u64) -> u64 {
    latency(n, |before| {
        // Masked, so that the interrupt can't be taken between check and wait.
        while cpu::taken(0) == before {
            instruction!("wfi");
            cpu::unmask();
            cpu::mask();
        }
    })
}
