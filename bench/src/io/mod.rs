//! `stile bench --io`: cost of a request to a disk, or to another VM by a network, on each path that it can take: by a device that the VM
//! owns, by one that the service VM serves, under KVM, and without a hypervisor.
//!
//! Each load runs twice, at the same time; the second run makes twice as many requests. The difference of the runs is the requests' cost:
//! boots, and all that precedes the first request, are in both.
//!
//! While all CPUs wait for a disk, the emulator's clock runs with the developer's machine's. So the number of the guests' ticks is not
//! repeatable, and their exits are left out.

pub mod budgets;
mod guest;
mod kvm;
pub mod limit;
mod load;
mod native;
mod path;
mod row;
mod run;
mod stile;

use std::thread;

use anyhow::{Context, Result};

use super::{counts, json_lines};
use ::stile::args::BenchArgs;
use ::stile::config::Arch;
use ::stile::progress::Task;
use ::stile::{emulator, exit, out};
use guest::Guest;
use load::Load;
use path::Path;
use row::Row;
use run::Job;

/// Measures, prints the table, and writes the file that the arguments name.
///
/// # Errors
/// Unknown name; failed build, fetch or run; the file can't be written.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let loads = load::choose(&args.only).map_err(exit::usage)?;
    let paths = Path::against(&args.against).map_err(exit::usage)?;
    let cpu = args.cpu.as_deref().unwrap_or(Arch::Aarch64.default_cpu_model());
    let task = Task::start("measuring");
    let rows = measure(&loads, &paths, cpu, &|what| task.status(format!("measuring: {what}")))?;
    drop(task);
    out::line(row::table(cpu, &rows))?;
    if let Some(path) = &args.json {
        let lines: Vec<_> = rows.iter().map(|row| row.line(cpu)).collect();
        std::fs::write(path, json_lines::write(&lines)?).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(exit::OK)
}

/// Measures each load on each path, and reports each pair of runs to `progress`.
///
/// # Errors
/// Failed build, fetch or run.
fn measure(loads: &[&'static Load], paths: &[Path], cpu: &str, progress: &dyn Fn(String)) -> Result<Vec<Row>> {
    emulator::ensure_for_model(Arch::Aarch64, cpu)?;
    let plugin = counts::build()?;
    let mut rows = Vec::new();
    for load in loads {
        progress(format!("{}: programs and files", load.work.name));
        let guest = Guest::build(load)?;
        for path in paths.iter().copied().filter(|path| path.is_for(load)) {
            progress(format!("{}, {}", load.work.name, path.name()));
            let run = |requests: u32| {
                let disk = guest::disk()?;
                let job = Job { load, guest: &guest, disk: disk.path(), requests, cpu, plugin: &plugin };
                path.run(&job).with_context(|| format!("measuring {}, {}", load.work.name, path.name()))
            };
            // Each run takes one CPU of the developer's machine, as the emulated CPUs take turns.
            let (first, second) = thread::scope(|scope| {
                let second = scope.spawn(|| run(2 * load.work.units));
                (run(load.work.units), second.join())
            });
            let second = second.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            rows.push(Row::of(load, path, &first?, &second?)?);
        }
    }
    Ok(rows)
}
