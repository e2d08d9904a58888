//! `stile bench --nested`: the probe as L2, under a guest hypervisor (L1) on Stile with FEAT_NV2 and FEAT_NV, and
//! under KVM. [`pc`] has x86-64.

pub mod budgets;
mod exits;
mod figure;
mod full;
mod kept;
mod l0;
mod l1;
pub mod operations;
pub mod pc;
mod setup;
mod table;

use anyhow::{Context, Result};

use super::{json_lines, platform};
use l0::{Request, Tools};
pub use l1::L1;
use stile::args::BenchArgs;
use stile::config::Arch;
use stile::progress::Task;
use stile::{cargo, exit, out};

/// The CPUs that operations need, and L1 has.
const CPUS: [u8; 2] = [1, 2];

/// Measures operations of L2, and prints their costs and exits.
///
/// # Errors
/// See `stile bench`.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let cpu = args.cpu.as_deref().unwrap_or(platform::of(Arch::Aarch64).cpu());
    let operations = operations::choose(&args.only).map_err(exit::usage)?;
    let setups = setup::choose(&args.l1, &args.against).map_err(exit::usage)?;
    let tools = Tools::new()?;
    let task = Task::start("measuring");
    let progress = |what: String| task.message(format!("measuring: nested, {what}"));
    let request = Request { tools: &tools, cpu, operations: &operations, progress: &progress };
    let mut figures = Vec::new();
    for (setup, cpus) in setups.into_iter().flat_map(|setup| CPUS.map(|cpus| (setup, cpus))) {
        let new = setup.measure(&request, cpus).with_context(|| format!("measuring L2 of {}", setup.name()))?;
        if args.update {
            kept::update(&cargo::repository(), new.clone())?;
        }
        figures.extend(new);
    }
    let boots = args.full.then(|| full::measure(&tools, cpu, &progress)).transpose()?;
    drop(task);
    out::line(table::terminal(&figures, cpu))?;
    let mut lines = json_lines::write(&figures)?;
    if let Some(boots) = boots {
        out::line(format_args!("\n{}", boots.text()))?;
        lines += &(serde_json::to_string(&boots)? + "\n");
    }
    if let Some(path) = &args.json {
        std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(exit::OK)
}
