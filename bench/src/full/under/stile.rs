//! The guest under Stile, whose ledger counts exits.

use anyhow::{Result, ensure};
use stile_blob::{Interrupts, Techniques};
use stile_board::CpuSet;

use super::job::{Counts, Job, confirm, vm};
use crate::emulate;
use crate::full::system;
use crate::under_stile;
use stile::config::{Arch, VmConfig};
use stile::image::VmFiles;

/// Runs one VM, each of whose vCPUs has a physical CPU for itself. With direct interrupts the machine has one more CPU, for
/// Stile's own work.
///
/// # Errors
/// The build or run fails, the guest does not confirm its work, or ledger and plugin disagree about the exits.
pub fn run(job: &Job<'_>, techniques: Techniques) -> Result<Counts> {
    let hypervisor = stile::hypervisor::make(job.arch)?;
    let vcpus = u32::from(job.work.vcpus);
    let vm = VmConfig { cpus: CpuSet::first_few(vcpus as usize), techniques, ..vm(job) };
    let cpus = vcpus + u32::from(techniques.interrupts == Interrupts::Direct);
    let config = under_stile::machine(job.arch, vm, cpus, job.cpu);
    let bootargs = system::bootargs(job.arch, job.work, job.units, techniques.ipi);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[], disks: &[] };
    let extra = if job.arch == Arch::Aarch64 { emulate::REPEATABLE.map(str::to_owned).to_vec() } else { Vec::new() };
    let output = under_stile::run(&hypervisor, &config, &files, extra, job.plugin)?;
    confirm(job, &output.console)?;
    let exits = output.exits()?;
    if job.arch == Arch::X86_64 {
        // Not compared with the ledger, which covers the whole run: these counts are those between the guest's marks.
        return Counts::of_section(&output.vmx);
    }
    let counts = Counts::of(output.counts.as_ref())?;
    let (taken, counted) = (counts.exits.values().sum::<u64>(), exits.values().sum::<u64>());
    ensure!(taken == counted, "the ledger has {counted} exits, and the emulator's plugin {taken}");
    // The ledger's reasons are finer than the plugin's.
    Ok(Counts { exits, ..counts })
}
