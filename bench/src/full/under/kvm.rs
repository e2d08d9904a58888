//! The guest under KVM: in a VM of the client, with the same device tree as under Stile and each vCPU pinned to a CPU.

use anyhow::Result;
use stile_blob::IpiAccess;

use super::job::{Counts, Job, confirm, vm};
use crate::full::system;
use crate::host::{Boot, Kvm};
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness};
use stile::image::{self, Seed, VmFiles};
use stile::l2::client::{self, Planned};
use stile::l2::linux;

/// The host's memory in bytes: the guest's, and the host's own, which holds the guest's files three times.
const MEMORY: u64 = system::MEMORY + (1 << 30);

/// Runs the work; repeats the boot `units` times.
pub fn run(kvm: Kvm, job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.arch, job.work, job.units, IpiAccess::Trapped);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[], disks: &[] };
    let config = vm(job);
    let plan = image::plan_for(job.arch, &config, &files, Seed::Fixed)?;
    let name = config.name.clone();
    let vms = [Planned { arch: job.arch, config, plan }];
    let mut archive = client::planned(&linux::build_for(job.arch, client::PROGRAM)?, client::archive, &vms);
    if job.arch == Arch::X86_64 {
        archive.modules(&debian::kvm_modules(DebianKernel::V6_1, Freshness::Weekly)?);
    }
    let archive = archive.finish();
    let times = if job.work.is_boot() { job.units as usize } else { 1 };
    let boot =
        Boot { cpu: job.cpu, cpus: job.work.vcpus.into(), memory: MEMORY, initrd: &archive, names: &vec![name; times], plugin: job.plugin };
    let output = kvm.boot(&boot)?;
    confirm(job, &output.line)?;
    match job.arch {
        Arch::Aarch64 => Counts::of(output.counts.as_ref()),
        Arch::X86_64 => Counts::of_section(&output.vmx),
    }
}
