//! `stile bench --scale`: cost of operations of two CPUs while all others are busy, by number of CPUs.
//!
//! The probe's VM has dedicated CPUs; each other CPU has a VM of two vCPUs that wake each other forever, so that it
//! schedules continually. The emulator (on Arm its plugin) counts Stile's instructions on the probe's CPUs, and its
//! writes there to cache lines that it also writes elsewhere. KVM can be measured beside it, with the same VMs.

pub mod budgets;
mod figure;
mod kept;
mod kvm;
mod machine;
mod picture;
mod table;

use anyhow::{Context, Result};

use crate::host::Kvm;
use crate::operation::{self, AARCH64_SCALE, Operation, RESTART, X86_64_SCALE, is_broadcast};
use crate::platform::{self, Platform};
use crate::{counts, json_lines, probe};
use figure::{Figure, Load, Machine, operations};
use stile::args::BenchArgs;
use stile::config::Arch;
use stile::progress::Task;
use stile::{cargo, emulator, exit, out};

/// Default numbers of CPUs on Arm.
const CPUS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Default numbers of CPUs on a PC: Bochs has no timers for a sixteenth one.
const CPUS_OF_PC: [u32; 5] = [1, 2, 4, 8, 15];

/// Default numbers of CPUs of KVM, whose host boots anew for each.
const CPUS_OF_KVM: [u32; 4] = [1, 2, 4, 8];

/// Measures, and prints a table.
///
/// # Errors
/// Unknown name; failed build or run; a file can't be written.
pub fn bench(args: &BenchArgs, arch: Arch) -> Result<u8> {
    let platform = platform::of(arch);
    let names = if args.only.is_empty() { operations(arch).iter().map(|name| (*name).to_owned()).collect() } else { args.only.clone() };
    let operations = operation::choose(&all_operations(platform), &names).map_err(exit::usage)?;
    let cpu = args.cpu.as_deref().unwrap_or(platform.cpu());
    let numbers = match arch {
        _ if !(args.cpus.is_empty() && args.vms.is_empty()) => args.cpus.clone(),
        Arch::Aarch64 => CPUS.to_vec(),
        Arch::X86_64 => CPUS_OF_PC.to_vec(),
    };
    let numbers = Numbers { cpus: &numbers, vms: &args.vms };
    let task = Task::start("measuring");
    let peers = kvm::choose(platform, &args.against).map_err(exit::usage)?;
    let progress = |what| task.message(format!("measuring: {what}"));
    let mut figures = measure(platform, &operations, cpu, numbers, &progress)?;
    let cpus_of_kvm = if args.cpus.is_empty() && args.vms.is_empty() { &CPUS_OF_KVM } else { numbers.cpus };
    for peer in peers {
        figures.extend(measure_kvm(peer, platform, &operations, cpu, cpus_of_kvm, &progress)?);
    }
    figures.sort_by_key(Figure::place);
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

/// Sizes of machines.
#[derive(Debug, Clone, Copy)]
struct Numbers<'a> {
    /// CPUs that all are busy.
    cpus: &'a [u32],
    /// VMs, most of them on one CPU.
    vms: &'a [u32],
}

/// Measures operations on machines with each of these numbers of CPUs that is enough for them, and of VMs.
///
/// # Errors
/// Something can't be built or run.
fn measure(
    platform: &Platform,
    operations: &[Operation],
    cpu: &str,
    numbers: Numbers<'_>,
    progress: &dyn Fn(String),
) -> Result<Vec<Figure>> {
    let arch = platform.arch;
    emulator::ensure(arch)?;
    let (probe, plugin) = (probe::build(arch)?, platform.has_plugin.then(counts::build).transpose()?);
    let tools = machine::Tools { platform, cpu, probe, plugin, hypervisor: stile::hypervisor::make(arch)? };
    let mut figures = Vec::new();
    let (alone, others): (Vec<Operation>, Vec<_>) =
        operations.iter().partition(|&&operation| is_broadcast(operation) || operation == RESTART);
    let mut groups = Platform::groups(&others);
    groups.extend(alone.into_iter().map(|operation| (operation.needs, vec![operation])));
    for (needs, operations) in groups {
        let on_each = numbers.cpus.iter().map(|&cpus| Machine { cpus, load: Load::OnEachCpu });
        let vms = if operations.iter().any(|&operation| is_broadcast(operation)) { &[] } else { numbers.vms };
        let on_one = vms.iter().map(|&vms| Machine { cpus: needs.cpus() + 1, load: Load::OnOneCpu { vms } });
        for machine in on_each.chain(on_one).filter(|machine| needs.cpus() <= machine.cpus) {
            let names = operations.iter().map(|operation| operation.name).collect::<Vec<_>>().join(", ");
            let what = format!("{names}, on {} CPUs, {:?}", machine.cpus, machine.load);
            progress(what.clone());
            figures.extend(machine::measure(&tools, machine, needs, &operations).context(what)?);
        }
    }
    figures.sort_by_key(Figure::place);
    Ok(figures)
}

/// Measures operations under KVM on machines with each of these numbers of CPUs.
///
/// # Errors
/// Something can't be built, fetched or run.
fn measure_kvm(
    peer: Kvm,
    platform: &Platform,
    operations: &[Operation],
    cpu: &str,
    numbers: &[u32],
    progress: &dyn Fn(String),
) -> Result<Vec<Figure>> {
    let tools = kvm::Tools::new(peer, platform, cpu)?;
    let mut figures = Vec::new();
    for (needs, operations) in Platform::groups(&kvm::supported(operations)) {
        for &cpus in numbers.iter().filter(|&&cpus| needs.cpus() <= cpus) {
            let names = operations.iter().map(|operation| operation.name).collect::<Vec<_>>().join(", ");
            let what = format!("{names}, under {}, on {cpus} CPUs", peer.name());
            progress(what.clone());
            figures.extend(tools.measure(cpus, needs, &operations).context(what)?);
        }
    }
    Ok(figures)
}

/// The operations of a platform, with those that only this command measures.
fn all_operations(platform: &Platform) -> Vec<Operation> {
    let more = match platform.arch {
        Arch::Aarch64 => &AARCH64_SCALE[..],
        Arch::X86_64 => &X86_64_SCALE,
    };
    [platform.operations, more].concat()
}
