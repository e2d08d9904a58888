//! The guest under Stile: exits are what its ledger counts.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use stile_ledger::aarch64::CATALOGUE;
use stile_ledger::report::Account;

use super::{Counts, Job, confirm};
use crate::bench::full::system;
use crate::bench::{emulate, under_stile};
use crate::image::VmFiles;

/// Runs it: one VM, of which each CPU has a physical one for itself.
pub fn run(job: &Job<'_>) -> Result<Counts> {
    let hypervisor = under_stile::hypervisor()?;
    let config = under_stile::machine(super::vm(job), job.work.vcpus.into(), job.cpu);
    let bootargs = system::bootargs(job.work, job.units);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[] };
    let extra = emulate::REPEATABLE.map(str::to_owned).to_vec();
    let output = under_stile::run(&hypervisor, &config, &files, extra, Some(job.plugin))?;
    confirm(job, &output.console)?;
    let exits = by_reason(&output.account)?;
    let counts = Counts::of(output.counts.as_ref())?;
    let (taken, counted) = (counts.exits.values().sum::<u64>(), exits.values().sum::<u64>());
    ensure!(taken == counted, "the ledger has {counted} exits, and the emulator's plugin {taken}");
    // The ledger's reasons are finer.
    Ok(Counts { exits, ..counts })
}

/// Exits by reason.
fn by_reason(account: &Account) -> Result<BTreeMap<String, u64>> {
    ensure!(account.difference() == 0, "the ledger does not add up: difference {}", account.difference());
    let rows = account.reasons(&CATALOGUE);
    let subs = rows.iter().flat_map(|reason| reason.subs.iter().map(|sub| (name(reason.name, &sub.name), sub.row.count)));
    Ok(subs.collect())
}

/// A row's name among the rows of all reasons.
fn name(reason: &str, sub: &str) -> String {
    if sub == "other" { reason.to_owned() } else { sub.to_owned() }
}
