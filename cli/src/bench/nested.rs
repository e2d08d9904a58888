//! `stile bench --nested`: the probe as L2, in a VM of Debian's KVM, which runs in a VM of Stile's that has an EL2 of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use stile_blob::{Nested, OnReset, Techniques};

use super::host::{client_archive, client_boot_arguments};
use super::operation::{Needs, Operation};
use super::{platform, probe, under_stile};
use crate::args::BenchArgs;
use crate::config::{Arch, DebianKernel, InitrdSource, KernelSource, MachineConfig, VmConfig};
use crate::debian::{self, Freshness};
use crate::emulator;
use crate::exit;
use crate::image::{Hypervisor, VmFiles};
use crate::progress::Task;

/// The memory of L1, in bytes.
const MEMORY: u64 = 512 << 20;

/// Exits of one reason that are fewer of an operation are those of L1's own tick.
const FEW: f64 = 0.05;

/// What an operation of L2 costs.
#[derive(Debug, Serialize)]
struct Figure {
    operation: &'static str,
    host: &'static str,
    level: u8,
    /// Without the loop's.
    instructions: f64,
    /// Exits to Stile, by reason.
    exits: BTreeMap<String, f64>,
    iterations: u64,
}

/// Measures what L2 does, and prints two tables: what it costs, and which exits it takes.
///
/// # Errors
/// As those of `stile bench`.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let platform = platform::of(Arch::Aarch64);
    let cpu = args.cpu.as_deref().unwrap_or(platform.cpu());
    let operations = platform.choose(&args.only).map_err(exit::usage)?;
    // WFI of L2 is L1's to decide, and operations of two vCPUs are those of two CPUs of L1.
    let operations: Vec<_> = operations.into_iter().filter(|operation| operation.needs == Needs::One).collect();
    emulator::installed()?;
    let probe = probe::build(Arch::Aarch64)?;
    let hypervisor = under_stile::hypervisor(Arch::Aarch64)?;
    let kernel = debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel;
    let kernel = std::fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let task = Task::start("measuring");
    let mut figures = Vec::new();
    for operation in operations {
        task.message(format!("measuring: nested, {}", operation.name));
        let measure = |iterations| run(&probe, &kernel, &hypervisor, cpu, operation, iterations);
        let (once, twice) = (measure(args.iterations)?, measure(2 * args.iterations)?);
        figures.push(figure(operation, &once, &twice)?);
    }
    drop(task);
    println!("{}", table(&figures, cpu));
    if let Some(path) = &args.json {
        let mut text = String::new();
        for figure in &figures {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{}", serde_json::to_string(figure)?);
        }
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(exit::OK)
}

/// What came of one run.
struct Run {
    instructions: f64,
    iterations: u64,
    /// The VM's exits, by reason.
    exits: BTreeMap<String, u64>,
}

fn run(probe: &[u8], kernel: &[u8], hypervisor: &Hypervisor, cpu: &str, operation: Operation, iterations: u32) -> Result<Run> {
    let (archive, counts) = client_archive(probe, &[operation], iterations)?;
    let config = config(cpu);
    let bootargs = client_boot_arguments("", &counts);
    let files = VmFiles { kernel, initrd: Some(&archive), bootargs: &bootargs, domains: &[] };
    let output = under_stile::run(hypervisor, &config, &files, Vec::new(), None)?;
    let exits = output.exits()?;
    let line = probe::lines(&output.console)?.into_iter().find(|line| line.operation == operation.name);
    let (instructions, iterations) = line
        .and_then(|line| line.instructions.zip(line.iterations))
        .with_context(|| format!("the probe did not measure {}", operation.name))?;
    Ok(Run { instructions, iterations, exits })
}

fn config(cpu: &str) -> MachineConfig {
    let vm = VmConfig {
        name: "l1".into(),
        kernel: KernelSource::Debian(DebianKernel::Newest),
        initrd: InitrdSource::None,
        append: String::new(),
        memory: MEMORY,
        vcpus: 1,
        cpus: 0,
        pinned: false,
        on_reset: OnReset::Stop,
        exec: None,
        domains: Vec::new(),
        techniques: Techniques { nested: Nested::Nv2, ..Techniques::default() },
    };
    under_stile::machine(Arch::Aarch64, vm, 1, cpu)
}

/// Per operation is what the run with twice as many has more.
fn figure(operation: Operation, once: &Run, twice: &Run) -> Result<Figure> {
    let more = twice.iterations.saturating_sub(once.iterations);
    ensure!(more > 0, "{}: twice as many iterations are no more", operation.name);
    let each = |(reason, count): (&String, &u64)| {
        let before = once.exits.get(reason).copied().unwrap_or(0);
        (reason.clone(), (*count as f64 - before as f64) / more as f64)
    };
    let exits = twice.exits.iter().map(each).filter(|(_, each)| *each >= FEW).collect();
    Ok(Figure { operation: operation.name, host: "stile", level: 2, instructions: twice.instructions, exits, iterations: twice.iterations })
}

fn table(figures: &[Figure], cpu: &str) -> String {
    let mut costs = Table::new();
    costs.load_preset(presets::NOTHING).set_header(["operation of L2", "instructions", "exits", "which"]);
    for figure in figures {
        let which: Vec<_> = figure.exits.iter().map(|(reason, each)| format!("{each:.2} {reason}")).collect();
        let exits = figure.exits.values().fold(0.0, |sum, each| sum + each);
        costs.add_row([figure.operation.to_owned(), format!("{:.0}", figure.instructions), format!("{exits:.2}"), which.join("\n")]);
    }
    for column in costs.column_iter_mut().skip(1).take(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "Instructions and exits to Stile per operation of L2 under KVM in a VM with an EL2, on -cpu {cpu}, L1's own instructions included.\n\
         Instructions are not cycles.\n{costs}"
    )
}
