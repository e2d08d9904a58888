//! The guest under KVM: in a VM of the client's, with the same device tree as under Stile and each vCPU on a CPU of its own.

use anyhow::Result;

use super::{Counts, Job, confirm};
use crate::bench::client::{self, Vm};
use crate::bench::full::system;
use crate::bench::host::{Boot, Kvm};
use crate::bench::linux;
use crate::config::Arch;
use crate::image::{self, Seed, VmFiles};

/// The host's memory in bytes: the guest's, and the host's own, in which the guest's files are three times.
const MEMORY: u64 = system::MEMORY + (1 << 30);

const NAME: &str = "guest";

/// Runs it; the boot, as many times as units are asked for.
pub fn run(kvm: Kvm, job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.work, job.units);
    let files = VmFiles { kernel: &job.system.kernel, initrd: Some(&job.system.initrd), bootargs: &bootargs, domains: &[] };
    let config = super::vm(job);
    let plan = image::plan(&config, &files, Seed::Fixed)?;
    let paths: Vec<String> = (0..plan.kernel.segments.len()).map(|index| format!("/kernel-{index}")).collect();
    let mut loads: Vec<_> = paths.iter().map(String::as_str).zip(plan.kernel.segments.iter().map(|segment| segment.ipa)).collect();
    loads.extend(plan.layout.initrd.iter().map(|range| ("/initrd", range.start)));
    loads.push(("/tree", plan.layout.dtb.start));
    let vm = Vm {
        arch: Arch::Aarch64,
        name: NAME,
        vcpus: config.vcpus,
        memory: config.memory,
        loads: &loads,
        entry: plan.kernel.entry,
        tree: plan.layout.dtb.start,
    };
    let mut archive = client::archive(&linux::build(client::PROGRAM)?, &[vm]);
    for (path, segment) in paths.iter().zip(&plan.kernel.segments) {
        archive.file(path.trim_start_matches('/'), 0o644, plan.kernel.bytes(segment));
    }
    archive.file("initrd", 0o644, &job.system.initrd);
    archive.file("tree", 0o644, &plan.dtb);
    let times = if job.work.is_boot() { job.units as usize } else { 1 };
    let boot = Boot {
        cpu: job.cpu,
        cpus: job.work.vcpus.into(),
        memory: MEMORY,
        initrd: &archive.finish(),
        names: &vec![NAME.to_owned(); times],
        plugin: Some(job.plugin),
    };
    let output = kvm.boot(&boot)?;
    confirm(job, &output.line)?;
    Counts::of(output.counts.as_ref())
}
