//! Power State Coordination Interface, version 1.1: *Arm Power State Coordination Interface*,
//! DEN0022. The callee's side.
//!
//! [`decode`] checks a call's arguments as far as that needs no state, and returns the [`Call`] or
//! an [`Error`]. Calls that concern other vCPUs then go to the VM's [`PowerTable`].
//!
//! [`Call::CpuSuspend`] has no arguments, because a vCPU has one suspended state: standby. A call
//! for a deeper state may return as if from standby (DEN0022, "CPU_SUSPEND"), so the hypervisor
//! waits for the vCPU's next interrupt and returns [`SUCCESS`]. `CPU_DEFAULT_SUSPEND`,
//! `SYSTEM_SUSPEND`, `MIGRATE` and the statistics are optional and not supported.

pub use power::{PowerState, PowerTable};

mod power;
#[cfg(test)]
mod tests;

use crate::smccc;

/// Function identifiers: DEN0022, "Function prototypes". A name with `_64` is the SMC64 variant.
pub mod id {
    /// `PSCI_VERSION`.
    pub const VERSION: u32 = 0x8400_0000;
    /// `CPU_SUSPEND`.
    pub const CPU_SUSPEND: u32 = 0x8400_0001;
    /// `CPU_SUSPEND`.
    pub const CPU_SUSPEND_64: u32 = 0xc400_0001;
    /// `CPU_OFF`.
    pub const CPU_OFF: u32 = 0x8400_0002;
    /// `CPU_ON`.
    pub const CPU_ON: u32 = 0x8400_0003;
    /// `CPU_ON`.
    pub const CPU_ON_64: u32 = 0xc400_0003;
    /// `AFFINITY_INFO`.
    pub const AFFINITY_INFO: u32 = 0x8400_0004;
    /// `AFFINITY_INFO`.
    pub const AFFINITY_INFO_64: u32 = 0xc400_0004;
    /// `MIGRATE_INFO_TYPE`.
    pub const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
    /// `SYSTEM_OFF`.
    pub const SYSTEM_OFF: u32 = 0x8400_0008;
    /// `SYSTEM_RESET`.
    pub const SYSTEM_RESET: u32 = 0x8400_0009;
    /// `PSCI_FEATURES`.
    pub const FEATURES: u32 = 0x8400_000a;
    /// `SYSTEM_RESET2`.
    pub const SYSTEM_RESET2: u32 = 0x8400_0012;
    /// `SYSTEM_RESET2`.
    pub const SYSTEM_RESET2_64: u32 = 0xc400_0012;
}

/// `x0` of a successful call.
pub const SUCCESS: u64 = 0;
/// `x0` of `PSCI_VERSION`: 1.1.
pub const VERSION_1_1: u64 = 1 << 16 | 1;
/// `x0` of `MIGRATE_INFO_TYPE`: no Trusted OS requires migration.
pub const MIGRATE_NOT_REQUIRED: u64 = 2;

/// Error of a call: DEN0022, "Return error codes".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Error {
    /// The function isn't implemented.
    NotSupported = -1,
    /// An argument is invalid, or no vCPU has the MPIDR.
    InvalidParameters = -2,
    /// The operation is not permitted now.
    Denied = -3,
    /// The vCPU is on.
    AlreadyOn = -4,
    /// The vCPU was turned on but has not started to run.
    OnPending = -5,
    /// The hypervisor failed.
    InternalFailure = -6,
    /// An affected component is not present.
    NotPresent = -7,
    /// An affected component is disabled.
    Disabled = -8,
    /// The vCPU cannot execute at the entry point.
    InvalidAddress = -9,
}

impl Error {
    /// The code as the caller finds it in `x0`, sign-extended.
    #[inline]
    pub const fn x0(self) -> u64 {
        self as i32 as i64 as u64
    }
}

/// The entry state of a vCPU that is turned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its first program counter, a guest-physical address.
    pub address: u64,
    /// Its `x0`.
    pub context_id: u64,
}

/// An implemented call, whose arguments are checked as far as that needs no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Answer [`VERSION_1_1`].
    Version,
    /// Wait for the caller's next interrupt, then answer [`SUCCESS`].
    CpuSuspend,
    /// [`PowerTable::cpu_off`]; does not return to the caller.
    CpuOff,
    /// [`PowerTable::cpu_on`].
    CpuOn {
        /// Affinity fields of the vCPU's MPIDR.
        target: u64,
        /// Its entry state.
        entry: Entry,
    },
    /// [`PowerTable::affinity_info`].
    AffinityInfo {
        /// Affinity fields of an MPIDR.
        target: u64,
        /// The lowest significant affinity level, 0 to 3.
        level: u32,
    },
    /// Answer [`MIGRATE_NOT_REQUIRED`].
    MigrateInfoType,
    /// The VM powers off; does not return to the caller.
    SystemOff,
    /// The VM resets; does not return to the caller. Also `SYSTEM_RESET2` with the architectural
    /// warm reset, which is equivalent here.
    SystemReset,
    /// Answer [`features`].
    Features {
        /// The function to query.
        function_id: u32,
    },
}

/// The arguments' names are those of DEN0022; `None` if the function isn't implemented.
enum Function {
    Version,
    CpuSuspend,
    CpuOff,
    CpuOn,
    AffinityInfo,
    MigrateInfoType,
    SystemOff,
    SystemReset,
    Features,
    SystemReset2,
}

const fn function(function_id: u32) -> Option<Function> {
    Some(match function_id {
        id::VERSION => Function::Version,
        id::CPU_SUSPEND | id::CPU_SUSPEND_64 => Function::CpuSuspend,
        id::CPU_OFF => Function::CpuOff,
        id::CPU_ON | id::CPU_ON_64 => Function::CpuOn,
        id::AFFINITY_INFO | id::AFFINITY_INFO_64 => Function::AffinityInfo,
        id::MIGRATE_INFO_TYPE => Function::MigrateInfoType,
        id::SYSTEM_OFF => Function::SystemOff,
        id::SYSTEM_RESET => Function::SystemReset,
        id::FEATURES => Function::Features,
        id::SYSTEM_RESET2 | id::SYSTEM_RESET2_64 => Function::SystemReset2,
        _ => return None,
    })
}

/// Decodes a guest's call from its registers. The function identifier is `w0`; an SMC32 function's
/// arguments are the low halves of their registers (*SMC Calling Convention*, DEN0028, "Register
/// use in AArch64 SMC and HVC calls").
///
/// # Errors
///
/// [`Error::NotSupported`] for a function that isn't implemented; [`Error::InvalidParameters`] for
/// an affinity level above 3 or an unknown type of reset. Either is the call's result.
pub const fn decode(x0: u64, x1: u64, x2: u64, x3: u64) -> Result<Call, Error> {
    let function_id = x0 as u32;
    let argument_mask = if smccc::is_64_bit(function_id) { u64::MAX } else { u32::MAX as u64 };
    let (x1, x2, x3) = (x1 & argument_mask, x2 & argument_mask, x3 & argument_mask);

    let Some(function) = function(function_id) else {
        return Err(Error::NotSupported);
    };
    Ok(match function {
        Function::Version => Call::Version,
        // Original format: StateID, StateType and PowerLevel; all other bits are zero.
        Function::CpuSuspend if x1 as u32 & !0x0301_ffff != 0 => return Err(Error::InvalidParameters),
        Function::CpuSuspend => Call::CpuSuspend,
        Function::CpuOff => Call::CpuOff,
        Function::CpuOn => Call::CpuOn { target: x1, entry: Entry { address: x2, context_id: x3 } },
        // The level is a 32-bit argument in both variants.
        Function::AffinityInfo => match x2 as u32 {
            level @ 0..=3 => Call::AffinityInfo { target: x1, level },
            _ => return Err(Error::InvalidParameters),
        },
        Function::MigrateInfoType => Call::MigrateInfoType,
        Function::SystemOff => Call::SystemOff,
        Function::SystemReset => Call::SystemReset,
        Function::Features => Call::Features { function_id: x1 as u32 },
        // Type 0 is SYSTEM_WARM_RESET, the only architectural one. Vendor-specific ones are not implemented.
        Function::SystemReset2 => match x1 as u32 {
            0 => Call::SystemReset,
            _ => return Err(Error::InvalidParameters),
        },
    })
}

/// Returns `x0` of `PSCI_FEATURES`: 0 for an implemented function, because none has a feature flag
/// set (`CPU_SUSPEND`: original `power_state` format, no OS-initiated mode).
pub const fn features(function_id: u32) -> u64 {
    // Callers also discover SMCCC_VERSION by this function.
    if function(function_id).is_some() || function_id == smccc::id::VERSION { SUCCESS } else { Error::NotSupported.x0() }
}
