//! The CPU's counters of cycles and instructions, for guests that measure (`counters` of a VM's techniques).
//!
//! They count at all exception levels up to EL2, so that a guest's figures include Stile's work. Nothing else uses them, and they are
//! off until such a guest reads one.

use core::fmt;

use stile_sysreg::SysReg;

use super::features;
use super::sysreg::{isb, read_sysreg, write_sysreg};

/// PMCCFILTR_EL0 and PMEVTYPER<n>_EL0: NSH, EL2 counts, too.
const AT_EL2: u64 = 1 << 27;
/// Event "Instruction architecturally executed" (Arm ARM, "Common event numbers").
const INST_RETIRED: u64 = 0x08;
/// PMCNTENSET_EL0: the cycle counter, and event counter 0.
const CYCLES: u64 = 1 << 31;
const FIRST: u64 = 1 << 0;
/// PMCR_EL0: E, and LC, by which the cycle counter has 64 bits.
const ENABLE: u64 = 1 << 0 | 1 << 6;

/// Whether the CPU counts instructions: it has the event, and a counter for it.
fn has_instructions() -> bool {
    read_sysreg!(PMCEID0_EL0) >> INST_RETIRED & 1 != 0 && read_sysreg!(PMCR_EL0) >> 11 & 0x1f != 0
}

/// Value of PMCCNTR_EL0 (cycles) or PMEVCNTR0_EL0 (instructions). `None` for other registers, and if the CPU does not count them.
///
/// The first call on a CPU starts the counters; writing the same settings again does not disturb them.
#[cold]
#[inline(never)]
pub fn read(register: SysReg) -> Option<u64> {
    if !features::get().pmu {
        return None;
    }
    let has_instructions = has_instructions();
    write_sysreg!(PMCCFILTR_EL0, AT_EL2);
    if has_instructions {
        write_sysreg!(PMEVTYPER0_EL0, AT_EL2 | INST_RETIRED);
    }
    write_sysreg!(PMCNTENSET_EL0, if has_instructions { CYCLES | FIRST } else { CYCLES });
    // DP (5) and D (3) off: cycles at EL2 count, each one.
    write_sysreg!(PMCR_EL0, ENABLE);
    isb();
    match register {
        SysReg::PMCCNTR_EL0 => Some(read_sysreg!(PMCCNTR_EL0)),
        SysReg::PMEVCNTR0_EL0 if has_instructions => Some(read_sysreg!(PMEVCNTR0_EL0)),
        _ => None,
    }
}

/// Displays the CPU's counters, for the log.
pub struct Description;

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !features::get().pmu {
            return f.write_str("cycles and instructions not available (no PMUv3)");
        }
        let version = read_sysreg!(ID_AA64DFR0_EL1) >> 8 & 0xf;
        let counters = read_sysreg!(PMCR_EL0) >> 11 & 0x1f;
        let instructions = if has_instructions() { "instructions" } else { "instructions not available (no event 0x08)" };
        write!(f, "PMUv3 (version {version}, {counters} event counters): cycles, {instructions}")
    }
}
