//! A load under Stile.

use std::path::Path;

use anyhow::{Result, ensure};

use super::load::Destination;
use super::run::{Job, Run, WAIT};
use crate::emulate;
use crate::full::{Counts, system, units_done};
use crate::under_stile::{self, exits_of};
use stile::config::{Arch, Flags, MachineConfig};
use stile::disk::functions::Functions;
use stile::emulator::{self, Board};
use stile::image::Seed;
use stile::machine::{self, Machine, Options};

/// The row of the ledger for guests' timers.
const TIMER: &str = "IRQ: virtual timer";

/// Runs it, with a device that the VM owns, or that the service VM serves. Each VM has a CPU for itself.
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
        extra: functions.arguments.iter().cloned().chain(emulate::REPEATABLE.into_iter().chain(WAIT).map(str::to_owned)).collect(),
    };
    let output = emulate::run(&emulator::Machine::Arm(board), &image.bytes, Some(job.plugin))?;
    let (console, exits) = under_stile::decode(Arch::Aarch64, &output.line)?;
    let requests = units_done(&job.load.work, &console)?;
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
    Ok(Run { requests, counts: Counts { exits: all, ..counts }, client: Some(client) })
}

/// The machine's configuration: the first VM makes the requests, and on a network the second one answers them.
fn configuration(job: &Job<'_>, served: bool) -> String {
    let vm = |name: &str, cpu: u32, append: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"debian:6.1\"\ninitrd = {:?}\nappend = \"{append}\"\nmemory = \"{}M\"\ncpus = [{cpu}]\n\
             pinned = true\n",
            job.guest.initrd(),
            system::MEMORY >> 20,
        )
    };
    let client = vm("client", 0, &job.bootargs());
    let (vms, cpus) = match job.load.to {
        Destination::Disk => (format!("{client}[[vm.disk]]\nfile = {:?}\nformat = \"raw\"\nserved = {served}\n", job.disk), 1),
        Destination::Vm => {
            let card = format!("[[vm.net]]\nbridge = \"lan0\"\nserved = {served}\n");
            (format!("{client}{card}{}{card}", vm("server", 1, &job.server_bootargs())), 2)
        }
    };
    format!("[machine]\ncpus = {}\ncpu = \"{}\"\n{vms}", cpus + u32::from(served), job.cpu)
}
