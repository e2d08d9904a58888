//! PSCI calls (Power State Coordination Interface, DEN0022).

use super::platform::Platform;
use super::sysreg::instruction;

const CPU_ON: u32 = 0xC400_0003;
const SYSTEM_OFF: u32 = 0x8400_0008;
const SYSTEM_RESET: u32 = 0x8400_0009;

macro_rules! call {
    ($conduit:literal, $function:expr, $arguments:expr) => {{
        let result: i64;
        // SAFETY: the functions do not access the caller's memory. Clobbers as in the SMC Calling Convention
        // 1.0, the larger set.
        unsafe {
            core::arch::asm!($conduit, inlateout("x0") u64::from($function) => result,
                inlateout("x1") $arguments[0] => _, inlateout("x2") $arguments[1] => _, inlateout("x3") $arguments[2] => _,
                lateout("x4") _, lateout("x5") _, lateout("x6") _, lateout("x7") _, lateout("x8") _, lateout("x9") _,
                lateout("x10") _, lateout("x11") _, lateout("x12") _, lateout("x13") _, lateout("x14") _, lateout("x15") _,
                lateout("x16") _, lateout("x17") _, options(nostack));
        }
        result
    }};
}

fn call(smc: bool, function: u32, arguments: [u64; 3]) -> i64 {
    if smc { call!("smc #0", function, arguments) } else { call!("hvc #0", function, arguments) }
}

/// Turns a CPU on, which gets its number in X0. Affinities count clusters of 16. Returns whether there is one.
pub fn start(platform: &Platform, cpu: u64) -> bool {
    unsafe extern "C" {
        fn other_start();
    }
    call(platform.smc, CPU_ON, [((cpu / 16) << 8) | (cpu % 16), other_start as *const () as u64, cpu]) == 0
}

/// Powers the machine off, by SMC or HVC.
pub fn system_off(smc: bool) -> ! {
    call(smc, SYSTEM_OFF, [0; 3]);
    loop {
        instruction!("wfi");
    }
}

/// Resets the machine, by SMC or HVC.
pub fn system_reset(smc: bool) -> ! {
    call(smc, SYSTEM_RESET, [0; 3]);
    loop {
        instruction!("wfi");
    }
}
