//! `stile bench --full`: what real work costs a guest: Debian's programs on Debian's kernel, under Stile, under KVM, and with no hypervisor.
//!
//! Each piece of work runs twice, the second time twice as long. What the second run cost more is the work's cost: the boot, the pause after
//! it, and the end, are in both.

mod libraries;
mod report;
mod system;
mod under;
mod work;

use std::path::Path;

use anyhow::{Context, Result};

use super::host::{Host, Kvm, Technique};
use report::Figure;
pub use report::Results;
use under::{Counts, Job};
pub use work::{Work, choose};

/// Measures the work under these hosts with the emulator's plugin, tells `progress` what runs, and returns the figures.
///
/// # Errors
/// Something can't be built, fetched or run; a guest does not do its work.
pub fn measure(work: &[&'static Work], hosts: &[Host], cpu: &str, plugin: &Path, progress: &dyn Fn(String)) -> Result<Results> {
    let mut results = Results::new(cpu);
    for work in work {
        progress(format!("{}: what it needs", work.name));
        let system = system::build(work)?;
        for host in hosts {
            let run = |units: u32| -> Result<Counts> {
                progress(format!("{} {} under {}", units, work.name, host.name()));
                under::run(*host, &Job { work, units, system: &system, cpu, plugin })
                    .with_context(|| format!("measuring {} under {}", work.name, host.name()))
            };
            let figure = match host {
                Host::Stile | Host::Without(_) | Host::Native if work.is_boot() => Figure::whole(&run(1)?),
                // One boot more of the guest: the host's is in both.
                Host::Kvm(_) if work.is_boot() => Figure::difference(&run(1)?, &run(2)?, 1)?,
                _ => Figure::difference(&run(work.units)?, &run(2 * work.units)?, work.units)?,
            };
            results.add(work, *host, figure);
        }
    }
    Ok(results)
}

/// Selects the hosts under which real work is measured: only the first of KVM's modes, unless more were requested; never Xen, which has no
/// guest with suitable devices.
pub fn hosts(hosts: &[Host], asked: &[String]) -> Vec<Host> {
    let wanted = |host: &&Host| match host {
        Host::Stile | Host::Without(Technique::VirtualInterrupts | Technique::TrappedIpis) | Host::Native | Host::Kvm(Kvm::Vhe) => true,
        Host::Kvm(_) => !asked.is_empty(),
        Host::Xen | Host::Without(_) => false,
    };
    hosts.iter().filter(wanted).copied().collect()
}
