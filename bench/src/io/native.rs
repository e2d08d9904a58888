//! A load with no hypervisor under it: on the emulator's own board, without EL2.

use anyhow::Result;

use super::run::{Job, Run, WAIT};
use crate::emulate;
use crate::full::{Counts, system, units_done};
use crate::platform::{self, Start};
use stile::config::Arch;
use stile::emulator::Machine;

/// Runs it.
pub fn run(job: &Job<'_>) -> Result<Run> {
    let start = Start { cpu: job.cpu, cpus: 1, memory: system::MEMORY };
    let mut machine = platform::of(Arch::Aarch64).linux(&start, job.bootargs(), job.guest.initrd());
    if let Machine::Arm(board) = &mut machine {
        board.machine.push("virtualization=off".into());
        board.extra.extend(WAIT.map(str::to_owned));
        board.extra.extend(disk(job));
    }
    let output = emulate::run(&machine, &job.guest.system.kernel, Some(job.plugin))?;
    let requests = units_done(&job.load.work, &output.line)?;
    // Without a hypervisor, all instructions are the guest's.
    Ok(Run { requests, counts: Counts { hypervisor: 0, ..Counts::of(output.counts.as_ref())? }, client: None })
}

/// The emulator's arguments for the disk.
pub fn disk(job: &Job<'_>) -> [String; 4] {
    let file = job.disk.display().to_string().replace(',', ",,");
    let drive = format!("if=none,id=disk,format=raw,file={file}");
    ["-drive", &drive, "-device", "virtio-blk-pci,drive=disk,disable-legacy=on,romfile="].map(str::to_owned)
}
