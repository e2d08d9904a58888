//! Arm: branch target injection (Spectre v2), branch history injection (Spectre-BHB) and speculative
//! store bypass (Spectre v4).
//!
//! Sources: Arm, *Cache Speculation Side-channels* and *Spectre-BHB* (white papers and the tables of
//! affected CPUs in the Arm Security Center); *SMC Calling Convention*, DEN 0028, "Arm Architecture
//! Calls"; Arm ARM, DDI 0487, ID_AA64PFR0_EL1.CSV2 and CSV3, ID_AA64MMFR1_EL1.ECBHB,
//! ID_AA64ISAR2_EL1.CLRBHB.
//!
//! Meltdown (CSV3 = 0) needs no row: EL2's translations are in a regime of their own, which
//! speculation at EL1 and EL0 does not use.

mod parts;
#[cfg(test)]
mod tests;

use core::fmt;

use stile_device::smccc::{NOT_SUPPORTED, Workarounds, id};

/// Identification of a CPU and its firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// MIDR_EL1.
    pub midr: u64,
    /// ID_AA64PFR0_EL1.CSV2.
    pub csv2: u8,
    /// ID_AA64PFR1_EL1.SSBS.
    pub ssbs: u8,
    /// ID_AA64ISAR2_EL1.CLRBHB: the instruction CLRBHB clears the branch history.
    pub clrbhb: bool,
    /// ID_AA64MMFR1_EL1.ECBHB: the branch history of a lower exception level does not steer a
    /// higher one.
    pub ecbhb: bool,
    /// Firmware's answers to SMCCC_ARCH_FEATURES on this CPU.
    pub firmware: Workarounds,
}

/// Isolation of branch targets between VMs that follow each other on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Targets trained in one context do not steer another.
    Unaffected,
    /// Firmware invalidates them: the SMC function to call, without arguments.
    Firmware(u32),
    /// Affected or not known, and firmware offers nothing.
    Exposed,
}

/// Isolation of the hypervisor's indirect branches from a guest's branch history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It does not reach EL2.
    Unaffected,
    /// A loop of this many taken branches at the vector overwrites it: 1 to 132.
    Loop(u8),
    /// CLRBHB at the vector.
    Instruction,
    /// SMCCC_ARCH_WORKAROUND_3 at the vector.
    Firmware,
    /// Affected or not known, and it can't be cleared.
    Exposed,
}

/// Ordering of the hypervisor's loads behind older stores to the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreBypass {
    /// Not reordered, or SCTLR_EL2.DSSBS = 0 forbids it at each exception to EL2 (FEAT_SSBS).
    Unaffected,
    /// SMCCC_ARCH_WORKAROUND_2 forbids it for the whole CPU, guests included, from boot on.
    Firmware,
    /// Affected or not known, and firmware offers nothing.
    Exposed,
}

/// Length of the loop in [`Plan::all`] for a CPU without a known length: that of most CPUs that need one.
const DEFAULT_BRANCHES: u8 = 32;

/// The mitigations of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// At a switch to another VM.
    pub targets: Targets,
    /// At each exit.
    pub history: History,
    /// At boot.
    pub store_bypass: StoreBypass,
}

impl Plan {
    /// No mitigation.
    pub const NONE: Self = Self { targets: Targets::Unaffected, history: History::Unaffected, store_bypass: StoreBypass::Unaffected };

    /// Chooses the mitigations of a CPU.
    pub fn new(identity: &Identity) -> Self {
        Self { targets: targets(identity), history: history(identity), store_bypass: store_bypass(identity) }
    }

    /// Each mitigation that this CPU can execute, needed or not: to measure its cost.
    pub fn all(identity: &Identity) -> Self {
        let needed = Self::new(identity);
        let history = match needed.history {
            History::Unaffected | History::Exposed if identity.clrbhb => History::Instruction,
            History::Unaffected | History::Exposed => History::Loop(parts::history_branches(identity.midr).unwrap_or(DEFAULT_BRANCHES)),
            other => other,
        };
        let targets = match (identity.firmware.three, identity.firmware.one) {
            (0.., _) => Targets::Firmware(id::ARCH_WORKAROUND_3),
            (_, 0..) => Targets::Firmware(id::ARCH_WORKAROUND_1),
            _ => needed.targets,
        };
        Self { targets, history, ..needed }
    }

    /// Whether this plan leaves the CPU exposed to an attack.
    pub fn is_exposed(&self) -> bool {
        self.targets == Targets::Exposed || self.history == History::Exposed || self.store_bypass == StoreBypass::Exposed
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("branch targets ")?;
        match self.targets {
            Targets::Unaffected => f.write_str("unaffected")?,
            Targets::Firmware(_) => f.write_str("invalidated between VMs by firmware")?,
            Targets::Exposed => f.write_str("EXPOSED")?,
        }
        f.write_str(", branch history ")?;
        match self.history {
            History::Unaffected => f.write_str("unaffected")?,
            History::Loop(branches) => write!(f, "cleared at exits by {branches} branches")?,
            History::Instruction => f.write_str("cleared at exits by CLRBHB")?,
            History::Firmware => f.write_str("cleared at exits by firmware")?,
            History::Exposed => f.write_str("EXPOSED")?,
        }
        f.write_str(", store bypass ")?;
        f.write_str(match self.store_bypass {
            StoreBypass::Unaffected => "unaffected",
            StoreBypass::Firmware => "disabled by firmware",
            StoreBypass::Exposed => "EXPOSED",
        })
    }
}

/// Whether a CPU with this MIDR_EL1 may use registers of EL1 for an AT instruction that EL2's code contains and that it
/// executes speculatively, and keep the translation (Arm's errata 1530923, 1530924, 1319537, 1319367 and 1165522). While EL1's
/// registers are of several vCPUs, all addresses must fault at level 0 there.
pub fn has_speculative_at(midr: u64) -> bool {
    parts::has_speculative_at(midr)
}

fn targets(identity: &Identity) -> Targets {
    if identity.csv2 != 0 || parts::is_in_order(identity.midr) {
        return Targets::Unaffected;
    }
    match (identity.firmware.three, identity.firmware.one) {
        // Workaround 3 includes workaround 1 (DEN 0028, SMCCC_ARCH_WORKAROUND_3).
        (0, _) => Targets::Firmware(id::ARCH_WORKAROUND_3),
        (_, 0) => Targets::Firmware(id::ARCH_WORKAROUND_1),
        (_, 1..) => Targets::Unaffected,
        _ => Targets::Exposed,
    }
}

fn history(identity: &Identity) -> History {
    // CSV2 = 3: FEAT_CSV2_3, branch history is part of the context.
    if identity.csv2 >= 3 || identity.ecbhb || parts::is_in_order(identity.midr) {
        return History::Unaffected;
    }
    if identity.clrbhb {
        return History::Instruction;
    }
    if let Some(branches) = parts::history_branches(identity.midr) {
        return History::Loop(branches);
    }
    match identity.firmware.three {
        0 => History::Firmware,
        1.. => History::Unaffected,
        _ => History::Exposed,
    }
}

fn store_bypass(identity: &Identity) -> StoreBypass {
    if identity.ssbs != 0 || parts::is_in_order(identity.midr) {
        return StoreBypass::Unaffected;
    }
    match identity.firmware.two {
        0 => StoreBypass::Firmware,
        1.. => StoreBypass::Unaffected,
        // -2, NOT_REQUIRED: firmware knows that this CPU is unaffected (DEN 0028, SMCCC_ARCH_WORKAROUND_2).
        -2 => StoreBypass::Unaffected,
        _ => StoreBypass::Exposed,
    }
}

/// Returns the workarounds to report to guests whose vCPUs may run on any of these CPUs: a call is needed if
/// one CPU needs it; otherwise the weakest answer of all CPUs.
///
/// Guests never need workaround 2: where a CPU needs it, it is in force from boot on.
pub fn reported(cpus: impl IntoIterator<Item = Workarounds>) -> Workarounds {
    let merge = |a: i32, b: i32| if a == 0 || b == 0 { 0 } else { a.min(b) };
    let merged = cpus
        .into_iter()
        .map(|cpu| Workarounds { two: if cpu.two == 0 { 1 } else { cpu.two }, ..cpu })
        .reduce(|a, b| Workarounds { one: merge(a.one, b.one), two: a.two.min(b.two), three: merge(a.three, b.three) });
    merged.unwrap_or(Workarounds { one: NOT_SUPPORTED as i32, two: NOT_SUPPORTED as i32, three: NOT_SUPPORTED as i32 })
}
