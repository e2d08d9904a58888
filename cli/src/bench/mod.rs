//! `stile bench`: what operations cost under Stile, and under its peers on the same emulated machine.
//!
//! The emulator counts instructions (`-icount`), so the same build gives the same figures each time. Instructions are not cycles.

pub mod budgets;
mod counts;
mod crossings;
mod emulate;
mod host;
mod nested;
mod operation;
mod probe;
mod report;

use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::args::BenchArgs;
use crate::progress::Task;
use crate::{emulator, exit};
pub use host::client_boot_arguments;
use host::{Host, Request};
use report::Results;

/// The file system of a kernel that runs the probe in a VM of its KVM, and the numbers of vCPUs for its boot arguments.
///
/// # Errors
/// A name that there isn't; something can't be built.
pub fn nested_probe(operations: &[&str], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    let names: Vec<_> = operations.iter().map(|name| (*name).to_owned()).collect();
    host::client_archive(&probe::build()?, &operation::choose(&names).map_err(exit::usage)?, iterations)
}

/// Measures, and prints a table.
///
/// # Errors
/// A name that there isn't; something can't be built, fetched or run; the file can't be written.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    if args.nested {
        return nested::bench(args);
    }
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
        plugin: plugin.as_deref(),
        progress: &progress,
    };
    let mut results = Results::new(&args.cpu, &operations);
    for host in [Host::Stile].into_iter().chain(peers) {
        let figures = host.measure(&request).with_context(|| format!("measuring under {}", host.name()))?;
        results.add(host, figures);
    }
    drop(task);
    println!("{}", results.table());
    if let Some(table) = results.crossings() {
        println!("\n{table}");
    }
    if let Some(path) = &args.json {
        let mut text = String::new();
        for line in results.json() {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{line}");
        }
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(exit::OK)
}
