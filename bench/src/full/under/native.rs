//! The guest with no hypervisor under it: on a machine without EL2, described to it by the same device tree as a VM.

use std::io::Write;

use anyhow::{Context, Result};
use stile_blob::IpiAccess;

use super::job::{Counts, Job, confirm};
use crate::emulate;
use crate::full::system;
use crate::platform::{self, Start};
use stile::config::Arch;
use stile::emulator::{Board, Machine};
use stile::image::dtb::{self, Description, SEED_LEN};

/// Runs it.
pub fn run(job: &Job<'_>) -> Result<Counts> {
    match job.arch {
        Arch::Aarch64 => run_on_arm(job),
        Arch::X86_64 => run_on_pc(job),
    }
}

fn run_on_pc(job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.arch, job.work, job.units, IpiAccess::Trapped);
    let start = Start { cpu: job.cpu, cpus: job.work.vcpus.into(), memory: system::MEMORY };
    let initrd = file(&job.system.initrd)?;
    let output = emulate::run(&platform::of(job.arch).linux(&start, bootargs, initrd.path()), &job.system.kernel, None)?;
    confirm(job, &output.line)?;
    Ok(Counts { hypervisor: 0, ..Counts::of_section(&output.vmx)? })
}

fn file(content: &[u8]) -> Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("making a file for the emulator")?;
    file.write_all(content).context("writing a file for the emulator")?;
    Ok(file)
}

fn run_on_arm(job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.arch, job.work, job.units, IpiAccess::Trapped);
    // The emulator adds the address of the initial RAM file system.
    let tree = dtb::build(&Description {
        disks: Vec::new(),
        el2: false,
        memory: system::MEMORY,
        vcpus: job.work.vcpus,
        topology: None,
        bootargs: &bootargs,
        initrd: None,
        seed: Some([0x5a; SEED_LEN]),
        pci: false,
        flash: false,
        served: 0,
        serves: 0,
        gic: stile_blob::Gic::V3,
        domains: Vec::new(),
    })?;
    let (tree, initrd) = (file(&tree)?, file(&job.system.initrd)?);
    let path = |file: &tempfile::NamedTempFile| file.path().display().to_string();
    let mut extra = emulate::REPEATABLE.map(str::to_owned).to_vec();
    extra.extend(["-dtb".into(), path(&tree), "-initrd".into(), path(&initrd), "-append".into(), bootargs]);
    let board = Board {
        cpu: job.cpu.to_owned(),
        cpus: job.work.vcpus.into(),
        nodes: Vec::new(),
        memory: system::MEMORY,
        // The last one takes effect.
        machine: vec!["virtualization=off".into()],
        smmu: false,
        firmware: None,
        icount: true,
        extra,
    };
    let output = emulate::run(&Machine::Arm(board), &job.system.kernel, job.plugin)?;
    confirm(job, &output.line)?;
    // Without a hypervisor, all instructions are the guest's.
    Ok(Counts { hypervisor: 0, ..Counts::of(output.counts.as_ref())? })
}
