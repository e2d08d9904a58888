//! `stile bench --nested`: the probe as L2, in a VM of Debian's KVM, which runs in a VM that has an EL2 of its own: under Stile in both
//! ways, and under KVM.

pub mod budgets;
mod figure;
mod full;
mod kept;
mod l0;
mod table;

use anyhow::{Context, Result};

use super::operation::{Needs, Operation};
use super::{counts, platform, probe, under_stile};
use crate::args::BenchArgs;
use crate::config::Arch;
use crate::progress::Task;
use crate::{cargo, emulator, exit};
use l0::Request;

/// Of each operation in a round. So few that the fewest instructions of all rounds are those of one without a tick of L1's.
const ITERATIONS: u32 = 128;

/// The CPUs that operations need, and L1 has.
const CPUS: [u8; 2] = [1, 2];

/// The operations of the table.
const OPERATIONS: [&str; 7] = ["hyp_call", "mmio_read_vgic", "mmio_read_device", "ipi_self", "ipi", "timer", "eoi"];

/// Measures what L2 does, and prints what it costs and which exits it takes.
///
/// # Errors
/// As those of `stile bench`.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let cpu = args.cpu.as_deref().unwrap_or(platform::of(Arch::Aarch64).cpu());
    let operations = choose(&args.only)?;
    let hosts = l0::choose(&args.against).map_err(exit::usage)?;
    emulator::installed()?;
    let (probe, plugin, hypervisor) = (probe::build(Arch::Aarch64)?, counts::build()?, under_stile::hypervisor(Arch::Aarch64)?);
    let task = Task::start("measuring");
    let progress = |what: String| task.message(format!("measuring: nested, {what}"));
    let request = Request {
        probe: &probe,
        cpu,
        operations: &operations,
        iterations: ITERATIONS,
        hypervisor: &hypervisor,
        plugin: &plugin,
        progress: &progress,
    };
    let mut figures = Vec::new();
    for (host, cpus) in hosts.into_iter().flat_map(|host| CPUS.map(|cpus| (host, cpus))) {
        let new = host.measure(&request, cpus).with_context(|| format!("measuring L2 under {}", host.name()))?;
        if args.update {
            kept::update(&cargo::repository(), new.clone())?;
        }
        figures.extend(new);
    }
    let boots = args.full.then(|| full::measure(cpu, &hypervisor, &plugin, &progress)).transpose()?;
    drop(task);
    println!("{}", table::terminal(&figures, cpu));
    let mut lines = figure::write(&figures)?;
    if let Some(boots) = boots {
        println!("\n{}", boots.text());
        lines += &(serde_json::to_string(&boots)? + "\n");
    }
    if let Some(path) = &args.json {
        std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(exit::OK)
}

/// The operations with these names, or those of the table.
fn choose(names: &[String]) -> Result<Vec<Operation>> {
    let default = || OPERATIONS.map(str::to_owned).to_vec();
    let operations = platform::of(Arch::Aarch64).choose(&if names.is_empty() { default() } else { names.to_vec() }).map_err(exit::usage)?;
    if let Some(other) = operations.iter().find(|operation| operation.needs == Needs::Shared) {
        return Err(exit::usage(format!("{} needs vCPUs that share a CPU, and who shares one is L1's to decide", other.name)));
    }
    Ok(operations)
}
