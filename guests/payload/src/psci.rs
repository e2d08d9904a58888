//! PSCI calls (Power State Coordination Interface, DEN0022).

use crate::{encode, entry, machine};

/// Function identifiers: the 32-bit form, and the 64-bit form of those that take addresses or CPUs.
#[allow(missing_docs)]
pub mod id {
    pub const VERSION: u32 = 0x8400_0000;
    pub const CPU_SUSPEND_32: u32 = 0x8400_0001;
    pub const CPU_OFF: u32 = 0x8400_0002;
    pub const CPU_ON_32: u32 = 0x8400_0003;
    pub const AFFINITY_INFO_32: u32 = 0x8400_0004;
    pub const MIGRATE_32: u32 = 0x8400_0005;
    pub const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
    pub const MIGRATE_INFO_UP_CPU_32: u32 = 0x8400_0007;
    pub const SYSTEM_OFF: u32 = 0x8400_0008;
    pub const SYSTEM_RESET: u32 = 0x8400_0009;
    pub const FEATURES: u32 = 0x8400_000A;
    pub const CPU_SUSPEND: u32 = 0xC400_0001;
    pub const CPU_ON: u32 = 0xC400_0003;
    pub const AFFINITY_INFO: u32 = 0xC400_0004;
    pub const SMCCC_VERSION: u32 = 0x8000_0000;
}

/// Return value.
pub const SUCCESS: i64 = 0;
/// Return value: the function is not implemented.
pub const NOT_SUPPORTED: i64 = -1;
/// Return value: invalid argument, such as the target CPU.
pub const INVALID_PARAMETERS: i64 = -2;
/// Return value of CPU_ON.
pub const ALREADY_ON: i64 = -4;
/// Return value of CPU_ON: another call is turning the CPU on.
pub const ON_PENDING: i64 = -5;
/// Return value of AFFINITY_INFO.
pub const OFF: i64 = 1;

/// Calls a function: by HVC, or by SMC from EL2.
pub fn call(function: u32, arguments: [u64; 3]) -> i64 {
    let result: u64;
    // SAFETY: no function accesses the guest's memory. Clobbers as in the SMC Calling Convention 1.0, the
    // larger set.
    unsafe {
        core::arch::asm!("mrs x4, CurrentEL", "tbnz x4, #3, 2f", "hvc #0", "b 3f", "2: smc #0", "3:",
            inlateout("x0") u64::from(function) => result,
            inlateout("x1") arguments[0] => _, inlateout("x2") arguments[1] => _, inlateout("x3") arguments[2] => _,
            lateout("x4") _, lateout("x5") _, lateout("x6") _, lateout("x7") _, lateout("x8") _, lateout("x9") _,
            lateout("x10") _, lateout("x11") _, lateout("x12") _, lateout("x13") _, lateout("x14") _, lateout("x15") _,
            lateout("x16") _, lateout("x17") _, options(nostack));
    }
    // A 32-bit function returns a W register.
    if function >> 30 & 1 == 0 { i64::from(result as i32) } else { result as i64 }
}

/// The instruction of the conduit.
pub fn conduit() -> u32 {
    if machine::at_el2() { encode::SMC } else { encode::hvc(0) }
}

/// Turns a CPU on at the guest's start code.
pub fn cpu_on(cpu: usize, context: u64) -> i64 {
    call(id::CPU_ON, [cpu as u64, entry::start_address(), context])
}

/// MPIDR affinity of a CPU, as calls name it: clusters of 16.
pub const fn affinity(cpu: u64) -> u64 {
    (cpu % 16) | ((cpu / 16) << 8)
}

/// Whether a CPU is on (0), off (1) or pending on (2).
pub fn affinity_info(cpu: usize) -> i64 {
    affinity_info_of(cpu as u64)
}

/// AFFINITY_INFO of the CPU with an affinity.
pub fn affinity_info_of(affinity: u64) -> i64 {
    call(id::AFFINITY_INFO, [affinity, 0, 0])
}

/// Turns this CPU off; returns only on failure.
pub fn cpu_off() -> i64 {
    call(id::CPU_OFF, [0; 3])
}

/// Powers the machine off.
pub fn system_off() -> ! {
    call(id::SYSTEM_OFF, [0; 3]);
    halt()
}

/// Resets the machine.
pub fn system_reset() -> ! {
    call(id::SYSTEM_RESET, [0; 3]);
    halt()
}

fn halt() -> ! {
    loop {
        crate::instruction!("wfi");
    }
}
