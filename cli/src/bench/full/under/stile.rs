//! The guest under Stile: exits are what its ledger counts.

use anyhow::{Result, ensure};

use super::job::{Counts, Job, confirm, vm};
use crate::bench::full::system;
use crate::bench::{emulate, under_stile};
use crate::config::Arch;
use crate::image::VmFiles;

/// Runs it: one VM, of which each CPU has a physical one for itself.
pub fn run(job: &Job<'_>) -> Result<Counts> {
    let hypervisor = under_stile::hypervisor(Arch::Aarch64)?;
    let config = under_stile::machine(Arch::Aarch64, vm(job), job.work.vcpus.into(), job.cpu);
    let bootargs = system::bootargs(job.work, job.units);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[] };
    let extra = emulate::REPEATABLE.map(str::to_owned).to_vec();
    let output = under_stile::run(&hypervisor, &config, &files, extra, Some(job.plugin))?;
    confirm(job, &output.console)?;
    let exits = output.exits()?;
    let counts = Counts::of(output.counts.as_ref())?;
    let (taken, counted) = (counts.exits.values().sum::<u64>(), exits.values().sum::<u64>());
    ensure!(taken == counted, "the ledger has {counted} exits, and the emulator's plugin {taken}");
    // The ledger's reasons are finer.
    Ok(Counts { exits, ..counts })
}
