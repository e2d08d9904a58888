//! `stile bench`: what operations cost under Stile, and under its peers on the same emulated machine.
//!
//! The emulator counts instructions (`-icount`), so the same build gives the same figures each time. Instructions are not cycles.

mod ablation;
pub mod budgets;
mod counts;
mod crossings;
mod emulate;
mod host;
mod kept;
mod operation;
mod picture;
mod probe;
mod record;
mod report;

use anyhow::{Context, Result};
use stile_blob::Techniques;

use crate::args::BenchArgs;
use crate::progress::Task;
use crate::{cargo, emulator, exit};
use host::{Host, Request};
use report::Results;

/// Measures, and prints a table.
///
/// # Errors
/// A name that there isn't; something can't be built, fetched or run; the file can't be written.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let operations = operation::choose(&args.only).map_err(exit::usage)?;
    let mut peers = host::choose(&args.against).map_err(exit::usage)?;
    emulator::installed()?;
    if args.against.is_empty() && !emulator::features(&args.cpu)?.names().contains(&"VHE") {
        peers.retain(|peer| !peer.needs_vhe());
    }
    let probe = probe::build()?;
    let plugin = if args.no_counts { None } else { Some(counts::build()?) };
    let task = Task::start("measuring");
    let progress = |what: String| task.message(format!("measuring: {what}"));
    let request = Request {
        probe: &probe,
        cpu: &args.cpu,
        operations: &operations,
        iterations: args.iterations,
        techniques: Techniques::default(),
        plugin: plugin.as_deref(),
        progress: &progress,
    };
    let (table, records) = if args.ablate {
        let records = ablation::measure(&request)?;
        (ablation::table(&args.cpu, &records), records)
    } else {
        let mut results = Results::new(&args.cpu, &operations);
        for host in [Host::Stile].into_iter().chain(peers) {
            let figures = host.measure(&request).with_context(|| format!("measuring under {}", host.name()))?;
            results.add(host, figures);
        }
        let tables = [Some(results.table()), results.crossings()];
        (tables.into_iter().flatten().collect::<Vec<_>>().join("\n\n"), results.records())
    };
    drop(task);
    println!("{table}");
    if let Some(path) = &args.json {
        std::fs::write(path, record::write(&records)?).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, picture::draw(&records, &args.cpu)).with_context(|| format!("writing {}", path.display()))?;
    }
    if args.update {
        kept::update(&cargo::repository(), records)?;
    }
    Ok(exit::OK)
}
