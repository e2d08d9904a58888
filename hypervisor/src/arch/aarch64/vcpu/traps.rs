//! Trap controls, by the CPU's features. Fields: Arm ARM, the register's own description.

use crate::arch::aarch64::host::features::{self, Features};
use crate::arch::aarch64::host::sysreg::{isb, read_sysreg, write_sysreg};

/// HCR_EL2 bits.
mod hcr {
    pub const VM: u64 = 1 << 0;
    pub const SWIO: u64 = 1 << 1;
    pub const PTW: u64 = 1 << 2;
    pub const FMO: u64 = 1 << 3;
    pub const IMO: u64 = 1 << 4;
    pub const AMO: u64 = 1 << 5;
    pub const VSE: u64 = 1 << 8;
    pub const FB: u64 = 1 << 9;
    pub const BSU_INNER: u64 = 1 << 10;
    pub const TWI: u64 = 1 << 13;
    pub const TWE: u64 = 1 << 14;
    pub const TID3: u64 = 1 << 18;
    pub const TSC: u64 = 1 << 19;
    pub const TIDCP: u64 = 1 << 20;
    pub const TACR: u64 = 1 << 21;
    pub const RW: u64 = 1 << 31;
    pub const E2H: u64 = 1 << 34;
    pub const TLOR: u64 = 1 << 35;
    pub const TERR: u64 = 1 << 36;
    pub const APK: u64 = 1 << 40;
    pub const API: u64 = 1 << 41;
    pub const TID5: u64 = 1 << 58;
}

/// HCR_EL2 of a vCPU that does not share its CPU.
///
/// FB and BSU: maintenance and barriers must reach all CPUs, because the vCPU may migrate; maintenance by set/way does
/// not (docs/guests.md, Known limits). SWIO: invalidation by set/way must not lose data. PTW: a walk of the guest's tables
/// must not read an assigned device, because Stile executes AT on these tables, and an external abort on that walk would be
/// Stile's.
pub fn hcr(have: &Features) -> u64 {
    let mut value = hcr::VM
        | hcr::SWIO
        | hcr::PTW
        | hcr::FMO
        | hcr::IMO
        | hcr::AMO
        | hcr::FB
        | hcr::BSU_INNER
        | hcr::TID3
        | hcr::TSC
        | hcr::TIDCP
        | hcr::TACR
        | hcr::RW
        | hcr::TLOR;
    if have.vhe {
        value |= hcr::E2H;
    }
    if have.ras {
        value |= hcr::TERR;
    }
    if have.pauth {
        value |= hcr::APK | hcr::API;
    }
    if have.mte {
        value |= hcr::TID5;
    }
    value
}

/// HCR_EL2.TWI and TWE.
pub const WAITING: u64 = hcr::TWI | hcr::TWE;

/// Sets the traps of WFI and WFE on this CPU.
pub fn set_waiting_traps(on: bool) {
    // Keeps the other bits, such as VSE, the guest's pending virtual SError.
    let rest = read_sysreg!(HCR_EL2) & !WAITING;
    write_sysreg!(HCR_EL2, if on { rest | WAITING } else { rest });
    // Synchronized by the following exception return (Arm ARM, Context synchronization event).
}

/// Sets whether pointer-authentication keys, and the instructions that use them, trap on this CPU, which has FEAT_PAuth.
pub fn set_key_traps(on: bool) {
    let rest = read_sysreg!(HCR_EL2) & !(hcr::APK | hcr::API);
    write_sysreg!(HCR_EL2, if on { rest } else { rest | hcr::APK | hcr::API });
    // Synchronized by the following exception return, as above.
}

/// HFGWTR_EL2.ICC_IGRPENn_EL1.
const GROUP_ENABLES: u64 = 1 << 39;

/// The CPU interface that EL1 accesses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CpuInterface {
    /// The virtual one.
    Virtual,
    /// The physical one for group 1, except for registers of both groups, which trap.
    Group1,
    /// The physical one, except for registers of group 0, which trap. SGIs are sent to any CPU.
    Physical,
}

/// Selects the CPU interface that EL1 accesses on this CPU, in HCR_EL2. With the physical one, EL1 takes physical IRQs, and
/// ICC_IGRPENn_EL1 traps, if supported.
pub fn set_cpu_interface(interface: CpuInterface) {
    let rest = read_sysreg!(HCR_EL2) & !(hcr::IMO | hcr::FMO);
    let virtual_ones = match interface {
        CpuInterface::Virtual => hcr::IMO | hcr::FMO,
        CpuInterface::Group1 => hcr::FMO,
        // There is no physical interrupt of group 0, which would be an FIQ (`gic::setup_cpu`, `gic::setup_distributor`).
        CpuInterface::Physical => 0,
    };
    write_sysreg!(HCR_EL2, rest | virtual_ones);
    if features::get().fgt {
        let [_, hfgwtr, ..] = FINE;
        let groups = if interface == CpuInterface::Virtual { 0 } else { GROUP_ENABLES };
        write_sysreg!(HFGWTR_EL2, hfgwtr | groups);
    }
}

/// Makes a virtual SError pending for the loaded vCPU.
pub fn inject_serror() {
    write_sysreg!(HCR_EL2, read_sysreg!(HCR_EL2) | hcr::VSE);
}

/// Takes back the pending virtual SError of the vCPU that is being put.
pub fn take_serror() -> bool {
    let value = read_sysreg!(HCR_EL2);
    if value & hcr::VSE != 0 {
        write_sysreg!(HCR_EL2, value & !hcr::VSE);
    }
    value & hcr::VSE != 0
}

/// MDCR_EL2.TDA: breakpoint and watchpoint registers trap.
const TDA: u64 = 1 << 9;

/// Sets whether breakpoint and watchpoint registers trap on this CPU.
pub fn set_debug_traps(on: bool) {
    let rest = read_sysreg!(MDCR_EL2) & !TDA;
    write_sysreg!(MDCR_EL2, if on { rest | TDA } else { rest });
}

/// MDCR_EL2: hides PMU, trace and profiling; breakpoints trap until first use (`debug`).
pub fn mdcr(have: &Features) -> u64 {
    let mut value = 0;
    if have.pmu {
        // HPMN = PMCR_EL0.N: all counters belong to EL1, whose accesses TPM and TPMCR trap.
        value |= read_sysreg!(PMCR_EL0) >> 11 & 0x1f;
        value |= 1 << 6 | 1 << 5;
    }
    if have.spe {
        value |= 1 << 14; // TPMS
    }
    if have.trf {
        value |= 1 << 19; // TTRF
    }
    if have.fgt {
        value |= 1 << 27; // TDCC: nobody is at the other end of the debug communications channel
    }
    value | 1 << 10 | 1 << 11 // TDOSA, TDRA
}

/// CPTR_EL2: FP, SIMD and SVE do not trap; SME, trace and activity monitors are hidden.
pub fn cptr(have: &Features) -> u64 {
    let hidden = if have.amu { 1 << 30 } else { 0 }; // TAM
    if have.vhe {
        hidden | 1 << 28 | FPEN | if have.sve { ZEN } else { 0 } // TTA
    } else {
        // RES1 bits, with TZ (8) and TSM (12), which are RES1 without the feature; TTA.
        hidden | 0x33ff & !(if have.sve { TZ } else { 0 }) | 1 << 20
    }
}

/// CPTR_EL2.FPEN and ZEN with VHE, where all ones disable the traps; TFP and TZ without.
const FPEN: u64 = 0b11 << 20;
const ZEN: u64 = 0b11 << 16;
const TFP: u64 = 1 << 10;
const TZ: u64 = 1 << 8;

/// Sets whether FP, SIMD and SVE registers trap on this CPU, also at EL2, which needs an [`isb`] before it uses them.
pub fn set_fp_traps(on: bool) {
    let have = features::get();
    let open = cptr(have);
    let closed = if have.vhe { open & !(FPEN | ZEN) } else { open | TFP | TZ };
    write_sysreg!(CPTR_EL2, if on { closed } else { open });
}

/// HCRX_EL2: MSCEn enables FEAT_MOPS at EL1; the rest is off, so that registers that Stile does not move trap.
pub fn hcrx(have: &Features) -> u64 {
    if have.mops { 1 << 11 } else { 0 }
}

/// Bits of HDFGRTR_EL2, and the first two of HDFGWTR_EL2.
mod fine {
    pub const DBGCLAIM: u64 = 1 << 5;
    pub const OSECCR_EL1: u64 = 1 << 10;
    pub const TRBIDR_EL1: u64 = 1 << 51;
    pub const PMBIDR_EL1: u64 = 1 << 63;
}

/// HFGRTR_EL2, HFGWTR_EL2, HFGITR_EL2, HDFGRTR_EL2, HDFGWTR_EL2. Bits whose names begin with "n" disable a trap at 1:
/// set for features that guests have. Trapped: DBGCLAIM* and OSECCR_EL1, which are shared by VMs and so covert
/// channels; ID registers of SPE and TRBE.
pub const FINE: [u64; 5] = {
    use fine::{DBGCLAIM, OSECCR_EL1, PMBIDR_EL1, TRBIDR_EL1};
    [0, 0, 0, DBGCLAIM | OSECCR_EL1 | TRBIDR_EL1 | PMBIDR_EL1, DBGCLAIM | OSECCR_EL1]
};

/// Sets the traps of this CPU. They are common to all vCPUs, except HCR_EL2.TWI, TWE, APK and API, and MDCR_EL2.TDA.
pub fn setup() {
    let have = features::get();
    write_sysreg!(HCR_EL2, hcr(have));
    write_sysreg!(MDCR_EL2, mdcr(have) | TDA);
    write_sysreg!(CPTR_EL2, cptr(have));
    write_sysreg!(HSTR_EL2, 0);
    write_sysreg!(VPIDR_EL2, read_sysreg!(MIDR_EL1));
    // CNTHCTL_EL2: the guest accesses the physical counter and timer; Stile uses CNTHP.
    write_sysreg!(CNTHCTL_EL2, if have.vhe { 0b11 << 10 } else { 0b11 });
    write_sysreg!(CNTVOFF_EL2, 0);
    if have.hcx {
        write_sysreg!(HCRX_EL2, hcrx(have));
    }
    if have.fgt {
        let [hfgrtr, hfgwtr, hfgitr, hdfgrtr, hdfgwtr] = FINE;
        write_sysreg!(HFGRTR_EL2, hfgrtr);
        write_sysreg!(HFGWTR_EL2, hfgwtr);
        write_sysreg!(HFGITR_EL2, hfgitr);
        write_sysreg!(HDFGRTR_EL2, hdfgrtr);
        write_sysreg!(HDFGWTR_EL2, hdfgwtr);
    }
    if have.fgt2 {
        write_sysreg!(HFGRTR2_EL2, 0);
        write_sysreg!(HFGWTR2_EL2, 0);
        write_sysreg!(HFGITR2_EL2, 0);
        write_sysreg!(HDFGRTR2_EL2, 0);
        write_sysreg!(HDFGWTR2_EL2, 0);
    }
    if have.mpam {
        // MPAM2_EL2: TRAPMPAM0EL1, TRAPMPAM1EL1, TIDR.
        write_sysreg!(MPAM2_EL2, 0b11 << 48 | 1 << 58);
    }
    isb();
}
