//! The guest with no hypervisor under it: on a machine without EL2, described to it by the same device tree as a VM.

use std::io::Write;

use anyhow::{Context, Result};

use super::job::{Counts, Job, confirm};
use crate::emulate;
use crate::full::system;
use stile::emulator::{Board, Machine};
use stile::image::dtb::{self, Description, SEED_LEN};

/// Runs it.
pub fn run(job: &Job<'_>) -> Result<Counts> {
    let bootargs = system::bootargs(job.work, job.units);
    // The emulator fills in where the initial RAM file system is.
    let tree = dtb::build(&Description {
        el2: false,
        memory: system::MEMORY,
        vcpus: job.work.vcpus,
        topology: None,
        bootargs: &bootargs,
        initrd: None,
        seed: [0x5a; SEED_LEN],
        pci: false,
        flash: false,
        domains: Vec::new(),
    })?;
    let file = |content: &[u8]| -> Result<tempfile::NamedTempFile> {
        let mut file = tempfile::NamedTempFile::new().context("making a file for the emulator")?;
        file.write_all(content).context("writing a file for the emulator")?;
        Ok(file)
    };
    let (tree, initrd) = (file(&tree)?, file(&job.system.initrd)?);
    let path = |file: &tempfile::NamedTempFile| file.path().display().to_string();
    let mut extra = emulate::REPEATABLE.map(str::to_owned).to_vec();
    extra.extend(["-dtb".into(), path(&tree), "-initrd".into(), path(&initrd), "-append".into(), bootargs]);
    let board = Board {
        cpu: job.cpu.to_owned(),
        cpus: job.work.vcpus.into(),
        nodes: Vec::new(),
        memory: system::MEMORY,
        // The last one of several wins.
        machine: vec!["virtualization=off".into()],
        smmu: false,
        firmware: None,
        icount: true,
        extra,
    };
    let output = emulate::run(&Machine::Arm(board), &job.system.kernel, Some(job.plugin))?;
    confirm(job, &output.line)?;
    // Without a hypervisor, all instructions are the guest's.
    Ok(Counts { hypervisor: 0, ..Counts::of(output.counts.as_ref())? })
}
