//! `stile bench`: cost of operations under Stile and its peers, on the same emulated machine.
//!
//! The emulator counts instructions (QEMU's `-icount`, Bochs' counter), so the same build gives the same figures each
//! time. Instructions are not cycles.

mod ablation;
pub mod budgets;
pub mod counts;
mod crossings;
mod emulate;
mod full;
mod history;
mod host;
pub mod io;
mod json_lines;
mod kept;
pub mod nested;
mod number;
mod operation;
mod page;
mod picture;
mod platform;
mod probe;
mod record;
mod report;
pub mod scale;
mod sheet;
mod stick;
mod store;
mod under_stile;
mod vmx;
mod vmx_table;

use std::path::PathBuf;

use anyhow::{Context, Result};
use stile_blob::{Gic, Techniques};

pub use host::{Grouping, client_boot_arguments, pc_host_arguments};
use host::{Host, Request};
use report::Results;
pub use stick::image as stick;
use stile::args::BenchArgs;
use stile::config::Arch;
use stile::progress::Task;
use stile::{cargo, emulator, exit, out};

/// The probe, as the kernel of an arm64 guest.
///
/// # Errors
/// It can't be built.
pub fn probe_image() -> Result<Vec<u8>> {
    probe::build(Arch::Aarch64)
}

/// Builds the file system of a kernel whose KVM runs the probe, and returns it with the numbers of vCPUs for its boot arguments.
///
/// # Errors
/// Unknown name; failed build.
pub fn nested_probe(operations: &[&str], iterations: u32) -> Result<(Vec<u8>, Vec<String>)> {
    let names: Vec<_> = operations.iter().map(|name| (*name).to_owned()).collect();
    let operations = platform::of(Arch::Aarch64).choose(&names).map_err(exit::usage)?;
    host::client_archive(&probe::build(Arch::Aarch64)?, &operations, iterations)
}

/// Builds a Debian for PCs whose KVM runs the probe, with operations by their names, in `vms` VMs: one after the other, or in
/// groups of two at a time. Returns its kernel, file system and boot arguments.
///
/// # Errors
/// Unknown name; failed build or fetch.
pub fn nested_probe_of_pc(operations: &[&str], iterations: u32, vms: usize, grouping: Grouping) -> Result<(PathBuf, Vec<u8>, String)> {
    let names: Vec<_> = operations.iter().map(|name| (*name).to_owned()).collect();
    let operations = platform::of(Arch::X86_64).choose(&names).map_err(exit::usage)?;
    host::pc_host(&probe::build(Arch::X86_64)?, &operations, iterations, vms, grouping)
}

/// Runs `stile bench`: measures, prints tables, and writes the files that the arguments name.
///
/// # Errors
/// Unknown name; failed build, fetch or run; the file can't be written.
pub fn bench(args: &BenchArgs) -> Result<u8> {
    let arch = Arch::named(&args.arch).map_err(exit::usage)?;
    if args.nested {
        return match arch {
            Arch::Aarch64 => nested::bench(args),
            Arch::X86_64 => nested::pc::bench(args),
        };
    }
    if arch != Arch::Aarch64 && (args.ablate || args.io) {
        return Err(exit::usage(format!("--ablate and --io measure {} only", Arch::Aarch64.name())));
    }
    if args.io {
        return io::bench(args);
    }
    if args.scale {
        return scale::bench(args, arch);
    }
    let platform = args.cpu.as_deref().map_or(platform::of(arch), |cpu| platform::of_machine(arch, cpu));
    let cpu = args.cpu.as_deref().unwrap_or(platform.cpu());
    if args.history {
        return history::history(&history::Selection { operations: &args.only, arch, cpu }, args.svg.as_deref());
    }
    let work = if args.full { full::choose(arch, &args.only) } else { Vec::new() };
    // With --full a name may be that of an operation or of a work.
    let names: Vec<String> = args.only.iter().filter(|name| work.iter().all(|work| work.name != **name)).cloned().collect();
    let operations = if names.is_empty() && !args.only.is_empty() { Vec::new() } else { platform.choose(&names).map_err(exit::usage)? };
    let mut peers = platform.choose_peers(&args.against).map_err(exit::usage)?;
    emulator::ensure_for_model(arch, cpu)?;
    if arch == Arch::Aarch64 && args.against.is_empty() && !emulator::features(cpu)?.names().contains(&"VHE") {
        peers.retain(|peer| !peer.needs_vhe());
    }
    let probe = probe::build(arch)?;
    // --full needs the plugin even with --no-counts: only the guest's marks separate real work from boot and power-off.
    let plugin = if !platform.has_plugin || args.no_counts && !args.full { None } else { Some(counts::build()?) };
    let task = Task::start("measuring");
    let progress = |what: String| task.message(format!("measuring: {what}"));
    let request = Request {
        platform,
        probe: &probe,
        cpu,
        operations: &operations,
        iterations: args.iterations,
        techniques: Techniques::default(),
        gic: Gic::default(),
        plugin: plugin.as_deref(),
        progress: &progress,
    };
    let hosts: Vec<Host> = [Host::Stile].into_iter().chain(peers).collect();
    let (mut tables, records) = if args.ablate {
        let records = ablation::measure(&request)?;
        (vec![ablation::table(cpu, &records)], records)
    } else {
        let mut results = Results::new(platform, cpu, &operations);
        for host in hosts.iter().copied().filter(|_| !operations.is_empty()) {
            let figures = host.measure(&request).with_context(|| format!("measuring under {}", host.name()))?;
            results.add(host, figures);
        }
        let tables = [(!operations.is_empty()).then(|| results.table()), results.reasons(), results.crossings(), results.vmx()];
        (tables.into_iter().flatten().collect(), results.records())
    };
    let mut lines = json_lines::write(&records)?;
    if args.full {
        let hosts = full::hosts(arch, &hosts, &args.against);
        let work = full::measure(arch, &work, &hosts, cpu, plugin.as_deref(), &progress)?;
        tables.push(work.table());
        lines.extend(work.json().into_iter().map(|line| line + "\n"));
    }
    drop(task);
    out::line(tables.join("\n\n"))?;
    if let Some(path) = &args.json {
        std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, picture::draw(&records, platform, cpu)).with_context(|| format!("writing {}", path.display()))?;
    }
    if args.update {
        kept::update(&cargo::repository(), records)?;
    }
    Ok(exit::OK)
}
