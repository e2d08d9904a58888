//! `stile bench --nested --full`: a whole Debian as L2, from its start to a shell that turns it off, compared with the
//! same Debian as L1.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use stile_blob::Nested;

use super::l0::Tools;
use super::l1::{self, debian_kernel};
use crate::counts::{self, Regime};
use crate::emulate::REPEATABLE;
use crate::host::client_boot_arguments;
use crate::number::{number, ratio};
use crate::under_stile;
use stile::config::Arch;
use stile::image::VmFiles;
use stile::l2;

/// Memory of an L1 that also holds L2's files and memory, in bytes.
const MEMORY: u64 = 1 << 30;

/// Work of the measured Debian's shell.
const COMMAND: &str = "echo a shell";

/// Maximum number of exit reasons that are shown.
const SHOWN: usize = 16;

/// Cost of a Debian from its start to its end.
#[derive(Debug, Serialize)]
pub struct Boots {
    /// The emulated CPUs' model.
    cpu: String,
    /// Instructions as a VM of Stile's.
    as_l1: u64,
    /// Instructions as a VM of KVM's in a VM of Stile's, all that L1 does for it included.
    as_l2: u64,
    /// The part of the latter in Stile.
    stile: u64,
    /// Exits of L2, and of L1 for it, by reason.
    exits: BTreeMap<String, u64>,
}

/// Measures Debian as L1 and as L2, on one CPU.
///
/// # Errors
/// Something can't be built, fetched or run; Debian does not get to its shell.
pub fn measure(tools: &Tools, cpu: &str, progress: &dyn Fn(String)) -> Result<Boots> {
    let debian = l2::Debian::new(1, COMMAND)?;
    let run = |config, files: &VmFiles<'_>| -> Result<counts::Run> {
        let machine = under_stile::machine(Arch::Aarch64, config, 1, cpu);
        let output = under_stile::run(&tools.hypervisor, &machine, files, REPEATABLE.map(str::to_owned).to_vec(), Some(&tools.plugin))?;
        ensure!(output.account.difference() == 0, "{} exits are not in the ledger", output.account.difference());
        output.counts.and_then(|counts| counts.run).context("the emulator's plugin counted no run")
    };
    progress("Debian as L1".into());
    let as_l1 = run(debian.config(), &debian.files())?;
    let (archive, names) = debian.archive()?;
    let kernel = debian_kernel()?;
    let l1 = |names: &[String]| {
        let mut config = l1::debian(1, MEMORY);
        config.techniques.nested = Nested::Nv2;
        let bootargs = client_boot_arguments("loglevel=4", names);
        run(config, &VmFiles { kernel: &kernel, initrd: Some(&archive), bootargs: &bootargs, domains: &[], disks: &[] })
    };
    progress("Debian as L2".into());
    let with = l1(&names)?;
    progress("L1 without an L2".into());
    let without = l1(&[])?;
    Ok(Boots::of(cpu, &as_l1, &with, &without))
}

impl Boots {
    /// Returns the difference between a run with L2 and one without.
    fn of(cpu: &str, as_l1: &counts::Run, with: &counts::Run, without: &counts::Run) -> Self {
        // L1's own second stage is at the same place in both runs.
        let is_l1 = |regime: &Regime| without.regimes.iter().any(|other| other.table == regime.table);
        let mut exits = BTreeMap::new();
        for regime in &with.regimes {
            let level = if is_l1(regime) { "L1" } else { "L2" };
            for (reason, count) in &regime.reasons {
                *exits.entry(format!("{level}: {}", named(reason))).or_default() += *count;
            }
        }
        for (reason, count) in without.regimes.iter().flat_map(|regime| &regime.reasons) {
            let sum: &mut u64 = exits.entry(format!("L1: {}", named(reason))).or_default();
            *sum = sum.saturating_sub(*count);
        }
        exits.retain(|_, count| *count > 0);
        Self {
            cpu: cpu.to_owned(),
            as_l1: instructions(as_l1),
            as_l2: instructions(with).saturating_sub(instructions(without)),
            stile: with.el2.instructions.saturating_sub(without.el2.instructions),
            exits,
        }
    }

    /// Returns the figures as text for the terminal.
    pub fn text(&self) -> String {
        let millions = |count: u64| number(count as f64 / 1e6);
        let mut text = format!(
            "Debian from its start to a shell that turns it off, one vCPU, -cpu {}, in millions of instructions:\n\
             as L1 {}, as L2 {} ({}), of which {} ran in Stile.\n\nExits to Stile, of L2 and of L1 on its behalf: {}\n",
            self.cpu,
            millions(self.as_l1),
            millions(self.as_l2),
            ratio(self.as_l2 as f64, self.as_l1 as f64),
            millions(self.stile),
            self.exits.values().sum::<u64>(),
        );
        let mut exits: Vec<_> = self.exits.iter().collect();
        exits.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in exits.into_iter().take(SHOWN) {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{count:10} {reason}");
        }
        text.trim_end().to_owned()
    }
}

/// The plugin's reason without its prefix, and without the address of an abort.
fn named(reason: &str) -> &str {
    let reason = reason.split(" 0x").next().unwrap_or(reason);
    reason.trim_start_matches("system register ")
}

/// All instructions of a run.
fn instructions(run: &counts::Run) -> u64 {
    let regimes = run.regimes.iter().map(|regime| regime.el1.instructions + regime.el0.instructions);
    run.el2.instructions + run.host_el0.instructions + regimes.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::{Counts, Run};

    fn run(el2: u64, regimes: &[(u64, u64, u64)]) -> Run {
        let counts = |instructions| Counts { instructions, ..Counts::default() };
        let regime = |&(table, el1, faults): &(u64, u64, u64)| Regime {
            table: Some(table),
            el1: counts(el1),
            el0: Counts::default(),
            exits: faults,
            reasons: BTreeMap::from([("data abort 0x40000000".to_owned(), faults)]),
        };
        Run { el2: counts(el2), host_el0: Counts::default(), regimes: regimes.iter().map(regime).collect() }
    }

    #[test]
    fn l1_overhead_is_subtracted() {
        let (with, without) = (run(30, &[(0x1000, 500, 7), (0x2000, 900, 5)]), run(10, &[(0x1000, 400, 3)]));
        let boots = Boots::of("max", &run(20, &[(0x1000, 1000, 1)]), &with, &without);
        assert_eq!((boots.as_l1, boots.as_l2, boots.stile), (1020, 1020, 20));
        assert_eq!(boots.exits, BTreeMap::from([("L1: data abort".to_owned(), 4), ("L2: data abort".to_owned(), 5)]));
        assert!(boots.text().contains("1.0x"), "{}", boots.text());
    }
}
