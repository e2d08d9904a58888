//! SMC Calling Convention, version 1.1: *SMC Calling Convention*, DEN0028. Dispatch of `HVC` and
//! `SMC` calls, and the Arm Architecture Service.
//!
//! Every call preserves the caller's `x4` to `x17`.

/// Function identifiers.
pub mod id {
    /// `SMCCC_VERSION`.
    pub const VERSION: u32 = 0x8000_0000;
    /// `SMCCC_ARCH_FEATURES`.
    pub const ARCH_FEATURES: u32 = 0x8000_0001;
    /// `SMCCC_ARCH_WORKAROUND_1`: CVE-2017-5715.
    pub const ARCH_WORKAROUND_1: u32 = 0x8000_8000;
    /// `SMCCC_ARCH_WORKAROUND_2`: CVE-2018-3639.
    pub const ARCH_WORKAROUND_2: u32 = 0x8000_7fff;
    /// `SMCCC_ARCH_WORKAROUND_3`: CVE-2022-23960.
    pub const ARCH_WORKAROUND_3: u32 = 0x8000_3fff;
    /// `PV_TIME_FEATURES`: *Paravirtualized Time for Arm-based Systems*, DEN0057A.
    pub const PV_TIME_FEATURES: u32 = 0xc500_0020;
    /// `PV_TIME_ST`: the address of the calling vCPU's stolen time.
    pub const PV_TIME_ST: u32 = 0xc500_0021;
    /// Call UID query of the vendor-specific hypervisor service.
    pub const VENDOR_HYP_CALL_UID: u32 = 0x8600_ff01;
}

/// `x0` of a successful call.
pub const SUCCESS: u64 = 0;
/// `x0` of an unknown call.
pub const NOT_SUPPORTED: u64 = u64::MAX;
/// `x0` of `SMCCC_VERSION`: 1.1.
pub const VERSION_1_1: u64 = 1 << 16 | 1;
/// The hypervisor's UUID: 880ad1f8-5953-4f74-947d-6d5833fd5815.
pub const UID: [u32; 4] = [0xf8d1_0a88, 0x744f_5359, 0x586d_7d94, 0x1558_fd33];

const FUNCTION_64: u32 = 1 << 30;

/// Whether a function identifier is SMC64: whether arguments are whole registers.
#[inline]
pub const fn is_64_bit(function_id: u32) -> bool {
    function_id & FUNCTION_64 != 0
}

/// The service that answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// [`crate::psci::decode`].
    Psci,
    /// [`arch`].
    Arch,
    /// [`vendor_hyp`].
    VendorHyp,
    /// [`paravirtual_time`].
    PvTime,
    /// None: `x0` becomes [`NOT_SUPPORTED`].
    Unknown,
}

/// Returns the service of a function identifier, `w0`.
#[inline]
pub const fn service(function_id: u32) -> Service {
    match function_id & !FUNCTION_64 {
        // "Allocated subranges of Function Identifier": fast calls by owning entity; PSCI has the
        // first 32 functions of the Standard Secure Service.
        0x8400_0000..=0x8400_001f => Service::Psci,
        0x8000_0000..=0x8000_ffff => Service::Arch,
        0x8600_0000..=0x8600_ffff => Service::VendorHyp,
        // Its functions exist in SMC64 form only.
        0x8500_0020..=0x8500_0021 if is_64_bit(function_id) => Service::PvTime,
        _ => Service::Unknown,
    }
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Set `x0`.
    X0(u64),
    /// Set `x0` to `x3`.
    X0To3([u64; 4]),
    /// Make the same call to the machine's firmware, then set `x0` to 0.
    Forward,
}

/// Answers of the machine's firmware to `SMCCC_ARCH_FEATURES` about workarounds: 0 if this CPU
/// needs the call, positive if the call is available but not needed, negative if it is not
/// implemented. Equal on all CPUs that a guest may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workarounds {
    /// About `SMCCC_ARCH_WORKAROUND_1`.
    pub one: i32,
    /// About `SMCCC_ARCH_WORKAROUND_2`. Guests see 0 as "not implemented": the call switches state of
    /// the physical CPU, which the hypervisor does not keep per vCPU.
    pub two: i32,
    /// About `SMCCC_ARCH_WORKAROUND_3`.
    pub three: i32,
}

impl Workarounds {
    /// Firmware without workarounds.
    pub const NONE: Self = Self { one: NOT_SUPPORTED as i32, two: NOT_SUPPORTED as i32, three: NOT_SUPPORTED as i32 };

    /// Returns the firmware's answer about a workaround as guests see it; `None` for another function.
    const fn told(&self, function_id: u32) -> Option<i32> {
        match function_id {
            id::ARCH_WORKAROUND_1 => Some(self.one),
            id::ARCH_WORKAROUND_2 if self.two == 0 => Some(NOT_SUPPORTED as i32),
            id::ARCH_WORKAROUND_2 => Some(self.two),
            id::ARCH_WORKAROUND_3 => Some(self.three),
            _ => None,
        }
    }
}

impl Default for Workarounds {
    fn default() -> Self {
        Self::NONE
    }
}

/// Answers a call to the Arm Architecture Service. `x1` is the caller's.
pub const fn arch(function_id: u32, x1: u64, workarounds: &Workarounds) -> Answer {
    match function_id {
        id::VERSION => Answer::X0(VERSION_1_1),
        id::ARCH_FEATURES => Answer::X0(arch_features(x1 as u32, workarounds)),
        _ => match workarounds.told(function_id) {
            Some(0) => Answer::Forward,
            // The call is permitted and has no effect.
            Some(1..) => Answer::X0(SUCCESS),
            Some(_) | None => Answer::X0(NOT_SUPPORTED),
        },
    }
}

const fn arch_features(function_id: u32, workarounds: &Workarounds) -> u64 {
    match function_id {
        id::VERSION | id::ARCH_FEATURES | id::PV_TIME_FEATURES => 0,
        _ => match workarounds.told(function_id) {
            Some(answer) => answer as i64 as u64,
            None => NOT_SUPPORTED,
        },
    }
}

/// A call to the paravirtualized time service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvTime {
    /// Set `x0`.
    X0(u64),
    /// Set `x0` to the address of the vCPU's stolen time, which is kept up from now on.
    StolenTime,
}

/// Answers a call to the paravirtualized time service. `x1` is the caller's.
pub const fn paravirtual_time(function_id: u32, x1: u64) -> PvTime {
    match (function_id, x1 as u32) {
        (id::PV_TIME_ST, _) => PvTime::StolenTime,
        (id::PV_TIME_FEATURES, id::PV_TIME_FEATURES | id::PV_TIME_ST) => PvTime::X0(SUCCESS),
        _ => PvTime::X0(NOT_SUPPORTED),
    }
}

/// Answers a call to the vendor-specific hypervisor service: the UID query.
pub const fn vendor_hyp(function_id: u32) -> Answer {
    match function_id {
        id::VENDOR_HYP_CALL_UID => Answer::X0To3([UID[0] as u64, UID[1] as u64, UID[2] as u64, UID[3] as u64]),
        _ => Answer::X0(NOT_SUPPORTED),
    }
}

#[cfg(test)]
mod tests;
