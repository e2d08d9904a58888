//! `stile bench --full`: cost of real work in a guest: Debian's programs on Debian's kernel, under Stile, under KVM,
//! and without a hypervisor.
//!
//! On Arm each piece of work runs twice, the second time twice as long. The difference is the work's cost: the boot,
//! the pause after it and the end are in both. On a PC it runs once, between two marks for the emulator.

mod libraries;
mod report;
pub mod system;
mod under;
mod work;

use std::path::Path;

use anyhow::{Context, Result};

use super::host::{Host, Kvm, Technique};
pub use report::{Figure, Results};
use stile::config::Arch;
use under::Job;
pub use under::{Counts, units_done};
pub use work::{Work, choose};

/// Measures the work under these hosts, on Arm with the emulator's plugin, reports each run to `progress`, and returns the figures.
///
/// # Errors
/// Something can't be built, fetched or run; a guest does not do its work.
pub fn measure(
    arch: Arch,
    work: &[&'static Work],
    hosts: &[Host],
    cpu: &str,
    plugin: Option<&Path>,
    progress: &dyn Fn(String),
) -> Result<Results> {
    let mut results = Results::new(cpu);
    for work in work {
        progress(format!("{}: programs and files", work.name));
        let system = system::build(arch, system::kernel(arch), work)?;
        for host in hosts {
            let run = |units: u32| -> Result<Counts> {
                progress(format!("{} {} under {}", units, work.name, host.name()));
                under::run(*host, &Job { arch, work, units, system: &system, cpu, plugin })
                    .with_context(|| format!("measuring {} under {}", work.name, host.name()))
            };
            let figure = match host {
                _ if arch == Arch::X86_64 => Figure::of_each(&run(work.units)?, work.units),
                Host::Stile | Host::Without(_) | Host::Native if work.is_boot() => Figure::whole(&run(1)?),
                // One more boot of the guest; the host's boot is in both.
                Host::Kvm(_) if work.is_boot() => Figure::difference(&run(1)?, &run(2)?, 1)?,
                _ => Figure::difference(&run(work.units)?, &run(2 * work.units)?, work.units)?,
            };
            results.add(work, *host, figure);
        }
    }
    Ok(results)
}

/// Selects the hosts under which real work is measured: only the first of KVM's modes, unless more were requested; never Xen, which has no
/// guest with suitable devices. On a PC, Stile also with each technique against exits of timers and IPIs, and with neither.
pub fn hosts(arch: Arch, hosts: &[Host], requested: &[String]) -> Vec<Host> {
    if arch == Arch::X86_64 {
        let more = [Technique::PassthroughTimer, Technique::IpisAlone, Technique::TrappedIpis].map(Host::Without);
        let peers = hosts.iter().filter(|host| matches!(host, Host::Native | Host::Kvm(_)));
        return [Host::Stile].iter().chain(&more).chain(peers).copied().collect();
    }
    let wanted = |host: &&Host| match host {
        Host::Stile | Host::Without(Technique::VirtualInterrupts | Technique::TrappedIpis) | Host::Native | Host::Kvm(Kvm::Vhe) => true,
        Host::Kvm(_) => !requested.is_empty(),
        Host::Xen | Host::Without(_) => false,
    };
    hosts.iter().filter(wanted).copied().collect()
}
