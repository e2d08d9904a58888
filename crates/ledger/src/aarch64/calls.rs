//! Hypercalls: a row for each function that Stile implements.
//!
//! Function numbers are from the SMC Calling Convention, section "Function Identifier Ranges", and the Power
//! State Coordination Interface, section "PSCI functions".

use crate::RowId;
use crate::aarch64::reason;
use crate::catalogue::{Block, named_rows};

/// PSCI functions by the low five bits of their identifiers, the same in SMC32 and SMC64 form.
pub(super) const PSCI: Block = Block::first(PSCI_NAMES.len());
pub(super) const PSCI_NAMES: &[&str; 32] = &[
    "VERSION",
    "CPU_SUSPEND",
    "CPU_OFF",
    "CPU_ON",
    "AFFINITY_INFO",
    "MIGRATE",
    "MIGRATE_INFO_TYPE",
    "MIGRATE_INFO_UP_CPU",
    "SYSTEM_OFF",
    "SYSTEM_RESET",
    "FEATURES",
    "CPU_FREEZE",
    "CPU_DEFAULT_SUSPEND",
    "NODE_HW_STATE",
    "SYSTEM_SUSPEND",
    "SET_SUSPEND_MODE",
    "STAT_RESIDENCY",
    "STAT_COUNT",
    "SYSTEM_RESET2",
    "MEM_PROTECT",
    "MEM_PROTECT_CHECK_RANGE",
    "SYSTEM_OFF2",
    "CLEAN_INV_MEMREGION",
    "CLEAN_INV_MEMREGION_ATTRIBUTES",
    "function 0x18",
    "function 0x19",
    "function 0x1a",
    "function 0x1b",
    "function 0x1c",
    "function 0x1d",
    "function 0x1e",
    "function 0x1f",
];

named_rows! {
    /// Other hypercalls with rows of their own.
    HVC_CALLS HVC_NAMES = Some(PSCI);
    /// `SMCCC_VERSION`.
    HVC_SMCCC_VERSION = "SMCCC_VERSION",
    /// `SMCCC_ARCH_FEATURES`.
    HVC_ARCH_FEATURES = "SMCCC_ARCH_FEATURES",
    /// `SMCCC_ARCH_SOC_ID`.
    HVC_ARCH_SOC_ID = "SMCCC_ARCH_SOC_ID",
    /// `SMCCC_ARCH_WORKAROUND_1`, `_2`, `_3`, and the rest of the range.
    HVC_ARCH_WORKAROUND = "SMCCC_ARCH_WORKAROUND",
    /// `TRNG_VERSION` and the other functions of the entropy source.
    HVC_TRNG = "TRNG",
    /// `PV_TIME_FEATURES`, `PV_TIME_ST`.
    HVC_PV_TIME = "PV_TIME",
    /// Queries about the vendor-specific hypervisor service: count, UID and revision.
    HVC_VENDOR_QUERY = "vendor query",
    /// A function of the vendor-specific hypervisor service.
    HVC_VENDOR = "vendor call",
    /// HVC with a nonzero immediate, reserved by the calling convention.
    HVC_IMMEDIATE = "immediate",
}

/// The row of a hypercall, by its function identifier (`w0`).
///
/// Unimplemented functions get [`reason::HVC`]'s other row; off the hot path, the caller may instead call
/// [`Ledger::row_for`](crate::Ledger::row_for) with the identifier as key.
#[inline]
pub const fn hvc(function: u32) -> RowId {
    /// Bit 30: 64-bit calling convention. Both forms of a function share a row.
    const SMC64: u32 = 1 << 30;

    match function & !SMC64 {
        // PSCI: standard secure service calls, functions 0 to 31.
        psci @ 0x8400_0000..=0x8400_001f => PSCI.row((psci & 0x1f) as usize),
        0x8000_0000 => HVC_SMCCC_VERSION,
        0x8000_0001 => HVC_ARCH_FEATURES,
        0x8000_0002 => HVC_ARCH_SOC_ID,
        0x8000_3fff..=0x8000_8000 => HVC_ARCH_WORKAROUND,
        0x8400_0050..=0x8400_005f => HVC_TRNG,
        0x8500_0020..=0x8500_0021 => HVC_PV_TIME,
        0x8600_ff00..=0x8600_ffff => HVC_VENDOR_QUERY,
        0x8600_0000..=0x8600_feff => HVC_VENDOR,
        _ => reason::HVC.other(),
    }
}
