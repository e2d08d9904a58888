//! Counts of the emulated PC (`emulator/bochs/instrument.cc`): events that are costly on hardware and that instruction counts do not
//! show.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::counts::OwnCpus;

/// Counts between two marks of the guest's, on all CPUs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Exits by basic reason.
    exits: BTreeMap<u16, u64>,
    /// Exits of the VMCS that runs the guest with the marks.
    marker_exits: BTreeMap<u16, u64>,
    /// All instructions.
    all_instructions: u64,
    /// Instructions outside of guests.
    instructions: u64,
    vmcs_reads: u64,
    vmcs_writes: u64,
    msr_writes: u64,
    sharing: OwnCpus,
}

/// Counts of one operation, without its exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Vmx {
    /// VMREAD outside of guests.
    pub vmcs_reads: f64,
    /// VMWRITE outside of guests.
    pub vmcs_writes: f64,
    /// WRMSR outside of guests.
    pub msr_writes: f64,
}

/// Reads the emulator's lines: a section each.
///
/// # Errors
/// Malformed line.
pub fn parse(text: &str) -> Result<Vec<Section>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("the emulator counted {line}"))).collect()
}

impl Section {
    /// All exits.
    pub fn exits(&self) -> u64 {
        self.exits.values().sum()
    }

    /// All instructions, including those of guests.
    pub const fn all_instructions(&self) -> u64 {
        self.all_instructions
    }

    /// Counts on the CPUs of the guest that set the marks.
    pub const fn sharing(&self) -> &OwnCpus {
        &self.sharing
    }

    /// Exits by basic reason.
    pub const fn by_reason(&self) -> &BTreeMap<u16, u64> {
        &self.exits
    }

    /// Instructions outside of guests.
    pub const fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Exits of the VMCS that runs the guest with the marks, and of all others.
    pub fn by_level(&self) -> [BTreeMap<u16, u64>; 2] {
        let mut others = self.exits.clone();
        for (reason, count) in &mut others {
            *count = count.saturating_sub(self.marker_exits.get(reason).copied().unwrap_or(0));
        }
        others.retain(|_, count| *count > 0);
        [self.marker_exits.clone(), others]
    }

    /// Difference of exits to an earlier section.
    pub fn more_exits(&self, before: &Self) -> i64 {
        self.exits() as i64 - before.exits() as i64
    }

    /// Returns the counts of one operation: the difference to `before`, divided by `operations`.
    pub fn of_each(&self, before: &Self, operations: u64) -> Vmx {
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / operations as f64;
        Vmx {
            vmcs_reads: each(self.vmcs_reads, before.vmcs_reads),
            vmcs_writes: each(self.vmcs_writes, before.vmcs_writes),
            msr_writes: each(self.msr_writes, before.msr_writes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: &str = r#"{"exits":{"10":64,"1":2},"marker_exits":{"10":64},"all_instructions":6400,"instructions":3200,"vmcs_reads":256,"vmcs_writes":66,"msr_writes":3,"sharing":{"instructions":3000,"atomics":2,"shared":1,"failed":0,"spins":4}}"#;
    const TWICE: &str = r#"{"exits":{"10":128,"1":2},"marker_exits":{"10":127},"all_instructions":9600,"instructions":6400,"vmcs_reads":512,"vmcs_writes":130,"msr_writes":3,"sharing":{"instructions":3000,"atomics":2,"shared":1,"failed":0,"spins":4}}"#;

    #[test]
    fn costs_at_the_edges_are_excluded() {
        let [once, twice] = <[Section; 2]>::try_from(parse(&format!("{ONCE}\n{TWICE}\n")).unwrap()).unwrap();
        assert_eq!((once.exits(), twice.more_exits(&once)), (66, 64));
        assert_eq!(twice.by_level(), [BTreeMap::from([(10, 127)]), BTreeMap::from([(1, 2), (10, 1)])]);
        assert_eq!((twice.all_instructions(), twice.instructions()), (9600, 6400));
        assert_eq!(*twice.sharing(), OwnCpus { instructions: 3000, atomics: 2, shared: 1, failed: 0, spins: 4 });
        assert_eq!(twice.of_each(&once, 64), Vmx { vmcs_reads: 4.0, vmcs_writes: 1.0, msr_writes: 0.0 });
        assert!(parse("{}\n").is_err() && parse("").unwrap().is_empty());
    }
}
