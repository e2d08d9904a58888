//! A load under Stile.

use std::path::Path;

use anyhow::{Result, ensure};

use super::run::{Job, Run, WAIT};
use crate::emulate;
use crate::full::{Counts, ends_well, system};
use crate::under_stile::{self, exits_of};
use stile::config::{Arch, Flags, MachineConfig};
use stile::disk::functions::Functions;
use stile::emulator::{self, Board};
use stile::image::Seed;
use stile::machine::{self, Machine, Options};

/// The row of the ledger for guests' timers.
const TIMER: &str = "IRQ: virtual timer";

/// Runs it, with a disk that the VM owns, or that the service VM serves. The VM has a CPU for itself, and the service VM another one.
pub fn run(job: &Job<'_>, served: bool) -> Result<Run> {
    let config = MachineConfig::from_text("io.toml", &configuration(job, served), Path::new("/"), &Flags::default())?;
    let functions = Functions::new(&config)?;
    let options = Options { report_exits: true, seed: Seed::Fixed, terminal: ("linux", (0, 0), false), text: "" };
    let Machine { config, image, memory, .. } = machine::make(config, &options)?;
    let board = Board {
        cpu: config.cpu_model.clone(),
        cpus: config.cpus,
        nodes: Vec::new(),
        memory,
        machine: Vec::new(),
        smmu: true,
        icount: true,
        firmware: None,
        extra: functions.arguments.into_iter().chain(emulate::REPEATABLE.into_iter().chain(WAIT).map(str::to_owned)).collect(),
    };
    let output = emulate::run(&emulator::Machine::Arm(board), &image.bytes, Some(job.plugin))?;
    let (console, exits) = under_stile::decode(Arch::Aarch64, &output.line)?;
    ends_well(job.load, job.requests, &console)?;
    let counts = Counts::of(output.counts.as_ref())?;
    let exits = exits.report();
    let mut all = exits_of(Arch::Aarch64, &exits.machine())?;
    let (taken, counted) = (counts.exits.values().sum::<u64>(), all.values().sum::<u64>());
    ensure!(taken == counted, "the ledger has {counted} exits, and the emulator's plugin {taken}");
    // The first VM makes the requests.
    let mut client = exits_of(Arch::Aarch64, &exits.vm(0))?;
    for exits in [&mut all, &mut client] {
        exits.remove(TIMER);
    }
    Ok(Run { counts: Counts { exits: all, ..counts }, client: Some(client.values().sum()) })
}

/// The machine's configuration: the guest is its first VM.
fn configuration(job: &Job<'_>, served: bool) -> String {
    let (cpus, append) = (1 + u32::from(served), job.bootargs());
    format!(
        "[machine]\ncpus = {cpus}\ncpu = \"{}\"\n\
         [[vm]]\nname = \"client\"\nkernel = \"debian:6.1\"\ninitrd = {:?}\nappend = \"{append}\"\nmemory = \"{}M\"\ncpus = [0]\npinned = true\n\
         [[vm.disk]]\nfile = {:?}\nformat = \"raw\"\nserved = {served}\n",
        job.cpu,
        job.guest.initrd(),
        system::MEMORY >> 20,
        job.guest.disk(),
    )
}
