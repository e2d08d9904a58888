//! `stile bench --scale`: cost of operations of two CPUs while all others are busy, by number of CPUs.
//!
//! The probe's VM has dedicated CPUs; each other CPU has a VM of two vCPUs that wake each other forever, so that it
//! schedules continually. The emulator's plugin counts Stile's instructions on the probe's CPUs, and its writes there
//! to cache lines that it also writes elsewhere.

pub mod budgets;
mod figure;
mod kept;
mod machine;
mod picture;
mod table;

use anyhow::{Context, Result};

use crate::operation::Operation;
use crate::platform::{self, Platform};
use crate::{counts, json_lines, probe};
use figure::{Figure, OPERATIONS};
use stile::args::BenchArgs;
use stile::config::Arch;
use stile::progress::Task;
use stile::{cargo, emulator, exit, out};

/// Default numbers of CPUs.
const CPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Measures, and prints a table.
///
/// # Errors
/// Unknown name; failed build or run; a file can't be written.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let platform = platform::of(Arch::Aarch64);
    let names: Vec<_> = if args.only.is_empty() { OPERATIONS.map(str::to_owned).to_vec() } else { args.only.clone() };
    let operations = platform.choose(&names).map_err(exit::usage)?;
    let cpu = args.cpu.as_deref().unwrap_or(platform.cpu());
    let numbers = if args.cpus.is_empty() { CPUS.to_vec() } else { args.cpus.clone() };
    let task = Task::start("measuring");
    let figures = measure(&operations, cpu, &numbers, &|what| task.message(format!("measuring: {what}")))?;
    drop(task);
    out::line(table::text(&figures))?;
    if let Some(path) = &args.json {
        std::fs::write(path, json_lines::write(&figures)?).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, picture::draw(&figures)).with_context(|| format!("writing {}", path.display()))?;
    }
    if args.update {
        kept::update(&cargo::repository(), figures)?;
    }
    Ok(exit::OK)
}

/// Measures operations on machines with each of these numbers of CPUs that is enough for them.
///
/// # Errors
/// Something can't be built or run.
fn measure(operations: &[Operation], cpu: &str, numbers: &[u32], progress: &dyn Fn(String)) -> Result<Vec<Figure>> {
    emulator::ensure(Arch::Aarch64)?;
    let (probe, plugin) = (probe::build(Arch::Aarch64)?, counts::build()?);
    let tools = machine::Tools { probe, plugin, hypervisor: stile::hypervisor::make(Arch::Aarch64)? };
    let mut figures = Vec::new();
    for &cpus in numbers {
        for (needs, operations) in Platform::groups(operations).into_iter().filter(|(needs, _)| needs.cpus() <= cpus) {
            let names = operations.iter().map(|operation| operation.name).collect::<Vec<_>>().join(", ");
            progress(format!("{names}, {cpus} CPUs"));
            let more = machine::measure(&tools, cpu, cpus, needs, &operations);
            figures.extend(more.with_context(|| format!("measuring {names} on {cpus} CPUs"))?);
        }
    }
    figures.sort_by_key(Figure::place);
    Ok(figures)
}
