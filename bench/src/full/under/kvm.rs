//! The guest under KVM: in a VM of the client, with the same device tree as under Stile and each vCPU pinned to a CPU.

use anyhow::Result;

use super::job::{Counts, Job, confirm, vm};
use crate::full::system;
use crate::host::{Boot, Kvm};
use stile::image::{self, Seed, VmFiles};
use stile::l2::{client, linux};

/// The host's memory in bytes: the guest's, and the host's own, in which the guest's files are three times.
const MEMORY: u64 = system::MEMORY + (1 << 30);

/// Runs the work; repeats the boot `units` times.
pub fn run(kvm: Kvm, job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.work, job.units);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[] };
    let config = vm(job);
    let plan = image::plan(&config, &files, Seed::Fixed)?;
    let archive = client::planned(&linux::build(client::PROGRAM)?, &config, &plan);
    let times = if job.work.is_boot() { job.units as usize } else { 1 };
    let boot = Boot {
        cpu: job.cpu,
        cpus: job.work.vcpus.into(),
        memory: MEMORY,
        initrd: &archive,
        names: &vec![config.name; times],
        plugin: Some(job.plugin),
    };
    let output = kvm.boot(&boot)?;
    confirm(job, &output.line)?;
    Counts::of(output.counts.as_ref())
}
